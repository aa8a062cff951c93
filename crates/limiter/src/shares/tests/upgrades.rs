//! What shares owe while another process takes over in an outage.

use super::*;

/// A limiter whose share owes 20 units, after what it owes was saved for another process.
fn leaving() -> (Limiter<Gone>, Arc<Limit>) {
    let (limiter, _, limit) = limiter(Gone::default());
    assert_eq!(drain(&limiter, &limit, b"k"), 20);
    limiter.begin_handover();
    limiter.save_for_handover(std::io::sink()).expect("saved");
    (limiter, limit)
}

#[test]
fn share_owes_nothing_once_another_process_is_to_pay_unless_that_one_does_not_serve() {
    let (limiter, _) = leaving();
    assert_eq!(limiter.shared().owed(), [], "the store responds meanwhile");
    limiter.abandon_handover();
    assert_eq!(limiter.shared().owed(), [(b"k".to_vec(), 20)]);
    assert_eq!(limiter.shared().owed(), []);
}

/// The store had been sent a charge when the handover began, and refused it.
#[test]
fn share_owes_what_a_store_refused_while_another_process_took_over() {
    let (limiter, limit) = leaving();
    let shares = &limiter.generation.shares;
    let refused = Owed {
        limit: Arc::clone(&limit),
        key: tollgate_limit::KeyBytes::from_slice(b"k"),
        units: 7,
    };
    assert!(shares.owe_again(vec![refused]).is_empty());
    limiter.generation.shares.left();
    assert_eq!(limiter.shared().owed(), [(b"k".to_vec(), 7)]);
}

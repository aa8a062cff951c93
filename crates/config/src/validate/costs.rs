//! Whether the costs of a limit can be paid.

use crate::reading::{At, Context, Place};
use crate::values::costs::Settlement;
use tollgate_limit::words;
use tollgate_policy::Cost;

/// What one variant of a limit can pay at once.
#[derive(Clone, Debug)]
pub(crate) struct Amounts {
    /// The burst or the window's amount, and the debt it allows.
    pub(crate) most: u64,
    pub(crate) place: Place,
    pub(crate) tier: Option<String>,
}

/// A constant cost that a bucket can never pay is an error; a request-dependent one is a warning.
/// `bounds`: the least and the most that a request costs; `currency`: what the limit counts.
pub(crate) fn check_payable(
    limit: &str,
    currency: Option<&str>,
    bounds: (u64, u64),
    place: Place,
    amounts: &[Amounts],
    context: &mut Context<'_>,
) {
    let (least, most) = bounds;
    let units = |units| words::amount(units, currency);
    for amount in amounts {
        let whose = match &amount.tier {
            Some(tier) => format!(" for tier `{tier}`"),
            None => String::new(),
        };
        let held = format!("at most {} at once", units(amount.most));
        let never = format!("but limit `{limit}` never holds that much{whose}");
        if least > amount.most {
            let at_least = if least == most { "" } else { "at least " };
            context
                .error(
                    format!("a request costs {at_least}{}, {never}", units(least)),
                    place,
                    "this can never be paid",
                )
                .at(amount.place, held)
                .help("raise `burst`, or allow `debt`");
        } else if most > amount.most {
            context
                .warning(
                    format!("a request may cost {}, {never}", units(most)),
                    place,
                    "such a request is always refused",
                )
                .at(amount.place, held);
        }
    }
}

/// A reservation must be computed from the request, and no response may be stopped below it. `most`:
/// the most that is reserved.
pub(crate) fn check_reservation(
    settle: &At<Settlement>,
    cost: &At<Cost>,
    most: u64,
    context: &mut Context<'_>,
) {
    if let Cost::Fixed(_) = cost.value {
        let title = "`settle` does not say what is charged until the response is known";
        let label = "neither an `estimate`, nor a `cost` that is computed from the request";
        let problem = context.error(title, settle.place, label);
        problem.help("write estimate = 500; or add cost = { json = \"max_tokens\", default = 1000, max = 30000, plus = \"body_bytes\" }, and the most that the request may come to is reserved");
        return;
    }
    if let Some(place) = settle.max.filter(|_| settle.settle.most < most) {
        let title = "the most a response may cost is below the most that is reserved for it";
        context
            .error(title, place, "the most a response may cost")
            .at(cost.place, format!("reserves up to {most}"))
            .help("leave out `max`: then a response that exceeds its reservation is charged what it used");
    }
}

pub(crate) fn check_estimate(
    estimate: u64,
    currency: Option<&str>,
    place: Place,
    amounts: &[Amounts],
    context: &mut Context<'_>,
) {
    let units = |units| words::amount(units, currency);
    for amount in amounts.iter().filter(|amount| estimate > amount.most) {
        let title = format!("an estimate of {} can never be paid", units(estimate));
        context
            .error(title, place, "charged when the request comes")
            .at(
                amount.place,
                format!("at most {} at once", units(amount.most)),
            );
    }
}

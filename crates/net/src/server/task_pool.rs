//! Tasks that have served a connection and wait for the next.
//!
//! The runtime's tasks are large, aligned, and moved when they begin and when they end: where connections come and go
//! with every request, that is a tenth of all instructions.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// TaskPool without a connection.
#[derive(Debug)]
pub(super) struct TaskPool<C>(RefCell<Vec<Rc<RefCell<Post<C>>>>>);

/// Where an attendant waits.
#[derive(Debug)]
struct Post<C> {
    given: Option<C>,
    waker: Option<Waker>,
}

impl<C> Default for TaskPool<C> {
    fn default() -> Self {
        Self(RefCell::default())
    }
}

impl<C> TaskPool<C> {
    /// Has one of them serve `caller`, or gives it back: there is none.
    pub(super) fn hand_over(&self, caller: C) -> Option<C> {
        let Some(post) = self.0.borrow_mut().pop() else {
            return Some(caller);
        };
        let mut post = post.borrow_mut();
        post.given = Some(caller);
        if let Some(waker) = post.waker.take() {
            waker.wake();
        }
        None
    }

    /// Waits for what is handed over; `None`: enough others wait.
    pub(super) async fn next(&self) -> Option<C> {
        if self.0.borrow().len() >= MOST {
            return None;
        }
        let post = Rc::new(RefCell::new(Post {
            given: None,
            waker: None,
        }));
        self.0.borrow_mut().push(Rc::clone(&post));
        poll_fn(|context| {
            let mut post = post.borrow_mut();
            match post.given.take() {
                Some(given) => Poll::Ready(Some(given)),
                None => {
                    post.waker = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }
}

/// TaskPool that are kept, a few kibibytes each.
const MOST: usize = 32;

//! A pool of tasks that have served a connection and wait for the next.
//!
//! The runtime's tasks are large, aligned, and moved at their beginning and end: if every request
//! has its own connection, that is a tenth of all instructions.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

#[derive(Debug)]
pub(super) struct TaskPool<C>(RefCell<Vec<Rc<RefCell<Post<C>>>>>);

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

    /// Waits for a connection; `None`: enough other tasks wait.
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

/// The largest number of waiting tasks, a few kibibytes each.
const MOST: usize = 32;

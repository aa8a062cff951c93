//! The operations that lock-free code needs of an atomic word. The tests' memory model implements
//! them too.

use std::sync::atomic::{AtomicU64, Ordering};

/// An atomic word.
pub(crate) trait Word {
    /// A word with this value.
    fn new(value: u64) -> Self;
    /// The value.
    fn load(&self, order: Ordering) -> u64;
    /// Replaces the value.
    fn store(&self, value: u64, order: Ordering);
    /// Replaces the value and returns the old one.
    fn swap(&self, value: u64, order: Ordering) -> u64;
    /// Replaces `old` by `new`, sequentially consistent (on x86-64 weaker orderings are no
    /// cheaper); returns whether the value was `old`.
    fn swap_if(&self, old: u64, new: u64) -> bool;
}

impl Word for AtomicU64 {
    fn new(value: u64) -> Self {
        Self::new(value)
    }

    #[inline(always)]
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }

    #[inline(always)]
    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }

    #[inline(always)]
    fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.swap(value, order)
    }

    #[inline(always)]
    fn swap_if(&self, old: u64, new: u64) -> bool {
        self.compare_exchange(old, new, Ordering::SeqCst, Ordering::Relaxed)
            .is_ok()
    }
}

// loom supports sequential consistency only for fences.
#[cfg(test)]
impl Word for loom::sync::atomic::AtomicU64 {
    fn new(value: u64) -> Self {
        Self::new(value)
    }

    fn load(&self, order: Ordering) -> u64 {
        if order == Ordering::SeqCst {
            loom::sync::atomic::fence(order);
        }
        self.load(order)
    }

    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }

    fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.swap(value, order)
    }

    fn swap_if(&self, old: u64, new: u64) -> bool {
        let swapped = self
            .compare_exchange(old, new, Ordering::SeqCst, Ordering::Relaxed)
            .is_ok();
        loom::sync::atomic::fence(Ordering::SeqCst);
        swapped
    }
}

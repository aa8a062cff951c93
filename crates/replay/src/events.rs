//! Requests between the log and the judge, 16 bytes each.

/// One request: when it began, how long it took, and which of the distinct requests it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Event {
    /// Microseconds since the Unix epoch.
    pub(crate) at: u64,
    /// Microseconds, at most 71 minutes.
    pub(crate) lasting: u32,
    pub(crate) class: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Order {
    #[default]
    Time,
    /// By class, and by time within each.
    Class,
}

impl Order {
    fn key(self, event: &Event) -> (u32, u64) {
        match self {
            Self::Time => (0, event.at),
            Self::Class => (event.class, event.at),
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Events {
    order: Order,
    all: Vec<Event>,
}

impl Events {
    pub(crate) fn push(&mut self, event: Event) {
        self.all.push(event);
    }

    /// Sorts them; those that are equal stay as they were read.
    pub(crate) fn sort(&mut self, order: Order) {
        self.order = order;
        // Logs are nearly sorted, and this sort takes what is sorted as it is.
        self.all.sort_by_key(|event| order.key(event));
    }

    /// Gives each event another class and duration, and sorts them; those without are dropped.
    pub(crate) fn relabel(
        &mut self,
        order: Order,
        mut to: impl FnMut(&Event) -> Option<(u32, u32)>,
    ) {
        self.all.retain_mut(|event| match to(event) {
            Some((class, lasting)) => {
                *event = Event {
                    class,
                    lasting,
                    ..*event
                };
                true
            }
            None => false,
        });
        self.sort(order);
    }

    /// All of them in their order; they must have been sorted.
    pub(crate) fn sorted(&self) -> impl Iterator<Item = Event> + '_ {
        debug_assert!(self.all.is_sorted_by_key(|event| self.order.key(event)));
        self.all.iter().copied()
    }
}

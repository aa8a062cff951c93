//! Values of descriptors and names of models in which `*` stands for any characters.

/// A value with `*`: the texts between.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wildcard(Vec<Box<str>>);

impl Wildcard {
    pub(crate) fn new(value: &str) -> Self {
        Self(value.split('*').map(Box::from).collect())
    }

    /// Whether `value` begins with the first text, ends with the last, and has the others between
    /// them in order.
    pub(crate) fn matches(&self, value: &str) -> bool {
        // Without `*` there is one text, and no other value matches.
        if let [text] = self.0.as_slice() {
            return **text == *value;
        }
        let [first, middle @ .., last] = self.0.as_slice() else {
            return false;
        };
        let inner = value.strip_prefix(&**first);
        let Some(mut rest) = inner.and_then(|inner| inner.strip_suffix(&**last)) else {
            return false;
        };
        for text in middle {
            match rest.find(&**text) {
                Some(at) => rest = &rest[at + text.len()..],
                None => return false,
            }
        }
        true
    }
}

//! A penalty: a limit blocks a key that it refuses too often. Each gateway counts the refusals that it
//! sends, and blocks by its own count.

use super::time::Micros;
use super::words;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Penalty {
    /// The refusals after which a key is blocked.
    pub refusals: u32,
    /// The span in which they are counted, from the first of them.
    pub span: Micros,
    pub block: Micros,
}

impl Penalty {
    /// The refusals that it takes, in words: "20 refusals in 1 minute".
    pub fn after(&self) -> String {
        let plural = if self.refusals == 1 { "" } else { "s" };
        let span = words::span(self.span);
        format!("{} refusal{plural} in {span}", self.refusals)
    }

    pub fn words(&self) -> String {
        let block = words::span(self.block);
        format!("{} block the key for {block}", self.after())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn penalty_says_its_numbers_in_words() {
        let penalty = Penalty {
            refusals: 20,
            span: Micros::from_secs(60),
            block: Micros::from_secs(600),
        };
        assert_eq!(
            penalty.words(),
            "20 refusals in 1 minute block the key for 10 minutes"
        );
    }
}

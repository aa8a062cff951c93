//! What a refusal says of a budget that is used up.

use std::fmt::Write as _;
use std::sync::Arc;

use super::refusal::escape_json;
use tollgate_limit::Micros;

/// A budget that refused a request, as far as its caller may know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpentBudget {
    /// The limit.
    pub limit: Arc<str>,
    /// Its amount and period: `50 USD per month`.
    pub quota: String,
    /// What is left of it; `None`: other callers draw from it too, and their use is not told.
    pub left: Option<String>,
    /// What the request costs; `None`: it states a cost above the highest allowed one, or one that
    /// cannot be read.
    pub cost: Option<String>,
    /// The time until the budget is whole again, or its window ends.
    pub reset: Micros,
}

impl SpentBudget {
    /// Writes these budgets as a list of JSON objects.
    pub fn write_list(budgets: &[Self], out: &mut String) {
        for (place, budget) in budgets.iter().enumerate() {
            out.push_str(if place == 0 { "[{" } else { ",{" });
            let texts = [
                ("policy", Some(&*budget.limit)),
                ("quota", Some(budget.quota.as_str())),
                ("left", budget.left.as_deref()),
                ("cost", budget.cost.as_deref()),
            ];
            for (name, text) in texts {
                if let Some(text) = text {
                    // Writing to a string cannot fail.
                    let _ = write!(out, "\"{name}\":\"");
                    escape_json(out, text);
                    out.push_str("\",");
                }
            }
            let _ = write!(out, "\"reset_ms\":{}}}", budget.reset.ceil_millis());
        }
        out.push(']');
    }

    /// The budget in a sentence.
    pub(super) fn words(&self) -> String {
        let mut words = format!("{} is {}", self.limit, self.quota);
        if let Some(left) = &self.left {
            words += &format!(", {left} left");
        }
        if let Some(cost) = &self.cost {
            words += &format!(", the request costs {cost}");
        }
        words + "."
    }
}

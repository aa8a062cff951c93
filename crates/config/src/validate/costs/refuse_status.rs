//! The status of a limit's refusals.

use http::StatusCode;
use serde_json::{Value, json};

use crate::context::Context;
use crate::reader::{Node, Read};
use crate::schema::Defs;

/// 429 or 402.
pub(crate) enum RefuseStatus {}

impl Read for RefuseStatus {
    type Value = StatusCode;

    fn read(node: Node<'_>, context: &mut Context<'_>) -> Option<StatusCode> {
        let status = u16::read(node, context)?;
        let read = CHOICES.into_iter().find(|choice| *choice == status);
        if read.is_none() {
            let title = format!("a limit cannot refuse with status {status}");
            context
                .error(title, node.place, "429 or 402 was expected")
                .help(
                    "429 says that requests come too fast, 402 that a budget is used up; a proxy that asks for decisions \
                     gets another status by `refuse_status` of [decide]",
                );
        }
        read
    }

    fn schema(_: &mut Defs) -> Value {
        json!({ "type": "integer", "enum": CHOICES.map(|choice| choice.as_u16()) })
    }
}

const CHOICES: [StatusCode; 2] = [StatusCode::TOO_MANY_REQUESTS, StatusCode::PAYMENT_REQUIRED];

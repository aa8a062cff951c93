//! The places of a concurrency limit: `in_flight` of a limit.

use serde_json::{Value, json};
use toml::de::DeValue;

use crate::reading::{Context, Defs, Node, Read, Text, from_variable, mismatch, table};

table! {
    /// A concurrency limit that adapts to the number of requests that the upstream can process.
    RawAdaptive {
        /// `true`.
        @required("in_flight = 10 for a fixed number, or { adaptive = true, least = 5, most = 200 }") adaptive: bool => true,
        /// The lowest value of the limit.
        least: u64 = 1 => 5,
        /// The highest value of the limit.
        most: u64 = 1000 => 200,
    }
}

/// The most requests at once: a number, `adaptive`, or a table with the bounds it adapts within.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InFlight {
    Most(u64),
    /// As many as the upstream can take, between these bounds.
    Adaptive {
        least: u64,
        most: u64,
    },
}

impl Read for InFlight {
    type Value = Self;

    fn read(node: Node<'_>, context: &mut Context<'_>) -> Option<Self> {
        const WANTED: &str = "a number of requests, \"adaptive\", or a table { adaptive = true, least = 5, most = 200 }";
        match node.value {
            DeValue::Integer(_) => u64::read(node, context).map(Self::Most),
            DeValue::String(text) if text.contains("${") => {
                from_variable(node, context, WANTED).map(Self::Most)
            }
            DeValue::Table(_) => Self::between(&RawAdaptive::read(node, context)?, node, context),
            _ => {
                let text = Text::read_as(node, context, WANTED)?;
                if text.as_str() == "adaptive" {
                    let bounds = RawAdaptive::default();
                    let (least, most) = (bounds.least().value, bounds.most().value);
                    return Some(Self::Adaptive { least, most });
                }
                mismatch(node, WANTED, node.value, context);
                None
            }
        }
    }

    fn schema(defs: &mut Defs) -> Value {
        json!({ "anyOf": [
            { "type": "integer", "minimum": 1 },
            { "type": "string", "enum": ["adaptive"] },
            RawAdaptive::schema(defs),
        ] })
    }
}

impl InFlight {
    fn between(raw: &RawAdaptive, node: Node<'_>, context: &mut Context<'_>) -> Option<Self> {
        let adaptive = raw.adaptive.get()?;
        if !adaptive.value {
            let title = "a table for `in_flight` says the bounds of an adaptive limit";
            context
                .error(title, adaptive.place, "`adaptive = true` is missing")
                .help("write in_flight = 10 for a fixed number, or { adaptive = true, least = 5, most = 200 }");
            return None;
        }
        let (least, most) = (raw.least().value, raw.most().value);
        if least == 0 || least > most {
            let label = if least == 0 {
                "at least 1".to_owned()
            } else {
                format!("the most is {most}")
            };
            let title = "an adaptive limit needs room between its least and its most";
            let place = raw.least.place().or(raw.most.place()).unwrap_or(node.place);
            context.error(title, place, label);
            return None;
        }
        Some(Self::Adaptive { least, most })
    }
}

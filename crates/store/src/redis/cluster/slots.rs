//! Slots: the slot of a key, and the slot table that nodes report.

use std::collections::HashMap;
use std::ops::RangeInclusive;

use redis::Value;

use crate::redis::link::tag_of;
use crate::wire_form::Name;

pub(crate) const SLOTS: usize = 16_384;

pub(crate) type Ranges = Vec<RangeInclusive<u16>>;

/// The slot table as a node reports it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) masters: HashMap<String, Ranges>,
    /// Every node with a part in the slots, including replicas.
    pub(super) nodes: Vec<String>,
}

/// The slot of a bucket: the slot of the tag in its key's braces.
pub(crate) fn slot(name: &Name) -> u16 {
    slot_of(&tag_of(name))
}

/// The slot of a key's tag: CRC-16/XMODEM, modulo the number of slots.
pub(crate) fn slot_of(tag: &[u8]) -> u16 {
    let crc = tag.iter().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 {
                crc << 1
            } else {
                crc << 1 ^ 0x1021
            }
        })
    });
    crc % 16_384
}

/// Reads the response to CLUSTER SLOTS of the node at `host`. `None`: it is invalid.
pub(super) fn layout(answer: &Value, host: &str) -> Option<Layout> {
    let Value::Array(ranges) = answer else {
        return None;
    };
    let mut layout = Layout::default();
    for range in ranges {
        let Value::Array(parts) = range else {
            return None;
        };
        let [Value::Int(from), Value::Int(to), nodes @ ..] = parts.as_slice() else {
            return None;
        };
        let (from, to) = (u16::try_from(*from).ok()?, u16::try_from(*to).ok()?);
        for (place, node) in nodes.iter().enumerate() {
            let Some(name) = name(node, host) else {
                continue;
            };
            if place == 0 {
                let ranges = layout.masters.entry(name.clone());
                ranges.or_default().push(from..=to);
            }
            if !layout.nodes.contains(&name) {
                layout.nodes.push(name);
            }
        }
    }
    Some(layout)
}

/// `host:port` of a node. A node reported without a host is on the host of the reporting node.
fn name(node: &Value, host: &str) -> Option<String> {
    let Value::Array(parts) = node else {
        return None;
    };
    let [stated, Value::Int(port), ..] = parts.as_slice() else {
        return None;
    };
    let stated = match stated {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok()?,
        Value::SimpleString(text) => text,
        Value::Nil => "",
        _ => return None,
    };
    match stated {
        // The node does not know its own name.
        "?" => None,
        "" => Some(format!("{host}:{port}")),
        stated => Some(format!("{stated}:{port}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cluster_slot_of_a_tag_equals_that_of_redis() {
        // Results of CLUSTER KEYSLOT for each.
        for (tag, slot) in [
            ("123456789", 12_739),
            ("foo", 12_182),
            ("bar", 5_061),
            ("", 0),
        ] {
            assert_eq!(slot_of(tag.as_bytes()), slot, "{tag}");
        }
    }

    #[test]
    fn cluster_slots_are_read_with_masters_replicas_and_nodes_without_a_host() {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let node = |host: Value, port| Value::Array(vec![host, Value::Int(port), text("id")]);
        let range = |from, to, nodes: Vec<Value>| {
            Value::Array([vec![Value::Int(from), Value::Int(to)], nodes].concat())
        };
        let answer = Value::Array(vec![
            range(
                0,
                99,
                vec![node(text("10.0.0.1"), 7000), node(text("10.0.0.2"), 7001)],
            ),
            range(100, 100, vec![node(Value::Nil, 7002)]),
            range(
                200,
                16_383,
                vec![node(text("10.0.0.1"), 7000), node(text("?"), 7003)],
            ),
        ]);
        let read = layout(&answer, "here").expect("an answer");
        assert_eq!(read.masters["10.0.0.1:7000"], [0..=99, 200..=16_383]);
        assert_eq!(read.masters["here:7002"], [100..=100]);
        assert_eq!(read.nodes, ["10.0.0.1:7000", "10.0.0.2:7001", "here:7002"]);
        for wrong in [
            Value::Nil,
            Value::Array(vec![Value::Int(1)]),
            Value::Array(vec![range(0, 70_000, Vec::new())]),
        ] {
            assert_eq!(layout(&wrong, "here"), None, "{wrong:?}");
        }
    }
}

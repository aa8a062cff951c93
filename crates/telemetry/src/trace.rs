//! The W3C trace context of a request (Trace Context level 2, section 3): which trace it belongs to.
//!
//! A gateway that takes no part in a trace passes `traceparent` and `tracestate` on as they are, even
//! if they are malformed; only what it logs must be valid. With a span of its own it sends its own
//! `traceparent`, and `tracestate` only beside a valid one.

use std::num::NonZeroU64;

use tollgate_limit::printable::hex;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    /// The trace: the first and the last eight bytes.
    pub trace_id: [u64; 2],
    pub span_id: NonZeroU64,
    /// The flags that the sender set; only [`SAMPLED`] has a meaning in every version.
    pub flags: u8,
}

impl TraceParent {
    /// Parses the value of the only `traceparent` header of a request; `None`: it is malformed, and
    /// the request counts as one without a trace.
    pub fn parse(value: &[u8]) -> Option<Self> {
        let (known, rest) = value.split_at_checked(LENGTH)?;
        let version = number(&known[..2])?;
        // Version 00 has nothing after the flags. Later ones may have more fields, each after a dash.
        let ends = match version {
            0 => rest.is_empty(),
            FORBIDDEN_VERSION => false,
            _ => rest.first().is_none_or(|next| *next == b'-'),
        };
        let dashes = [2, 35, 52].iter().all(|at| known[*at] == b'-');
        if !ends || !dashes {
            return None;
        }
        let trace_id = [number(&known[3..19])?, number(&known[19..35])?];
        let parsed = Self {
            trace_id,
            span_id: NonZeroU64::new(number(&known[36..52])?)?,
            flags: u8::try_from(number(&known[53..])?).ok()?,
        };
        (trace_id != [0; 2]).then_some(parsed)
    }

    /// Whether the sender records its span.
    pub const fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// The header of a request whose sender takes part in the trace.
    pub fn header(&self) -> String {
        let text = |digits: &[u8]| String::from_utf8_lossy(digits).into_owned();
        let (trace, span) = (text(&self.trace()), text(&self.span()));
        format!("00-{trace}-{span}-{:02x}", self.flags)
    }

    /// The trace as 32 hexadecimal digits.
    pub fn trace(&self) -> [u8; 32] {
        let mut digits = [0; 32];
        digits[..16].copy_from_slice(&hex(self.trace_id[0]));
        digits[16..].copy_from_slice(&hex(self.trace_id[1]));
        digits
    }

    /// The span as 16 hexadecimal digits.
    pub fn span(&self) -> [u8; 16] {
        hex(self.span_id.get())
    }
}

/// The flag of a trace that is recorded.
pub const SAMPLED: u8 = 1;
/// The flag of a trace whose number is random.
pub const RANDOM: u8 = 2;

/// The number that at most 16 hexadecimal digits write, in lower case as the specification demands.
fn number(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0, |number, digit| {
        let value = tollgate_limit::hex::value(*digit).filter(|_| !digit.is_ascii_uppercase())?;
        Some(number << 4 | u64::from(value))
    })
}

const LENGTH: usize = 55;

/// `ff`, which the specification forbids.
const FORBIDDEN_VERSION: u64 = 0xff;

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    const SPAN: &str = "b7ad6b7169203331";

    fn parse(value: &str) -> Option<TraceParent> {
        TraceParent::parse(value.as_bytes())
    }

    #[test]
    fn traceparent_of_the_specification_is_read() {
        // The examples of section 3.2.3.
        for (value, sampled) in [
            (
                "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                true,
            ),
            (
                "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00",
                false,
            ),
        ] {
            let parsed = parse(value).expect(value);
            assert_eq!(parsed.is_sampled(), sampled);
            assert_eq!(parsed.header(), value);
            assert_eq!(std::str::from_utf8(&parsed.trace()), Ok(&value[3..35]));
            assert_eq!(std::str::from_utf8(&parsed.span()), Ok(&value[36..52]));
        }
    }

    #[test]
    fn traceparent_with_other_flags_is_read_by_its_sampled_bit() {
        for (flags, sampled) in [("02", false), ("03", true), ("ff", true), ("fe", false)] {
            let parsed = parse(&format!("00-{TRACE}-{SPAN}-{flags}")).expect(flags);
            assert_eq!(parsed.is_sampled(), sampled, "{flags}");
        }
    }

    #[test]
    fn traceparent_of_a_later_version_is_read_as_far_as_it_is_known() {
        for good in [
            "cc-T-S-01",
            "cc-T-S-01-what-the-future-will-be",
            "01-T-S-00-",
            "fe-T-S-01",
        ] {
            let value = good.replace('T', TRACE).replace('S', SPAN);
            assert!(parse(&value).is_some(), "{value}");
        }
        for bad in ["cc-T-S-01.what", "cc-T-S-011", "ff-T-S-01", "ff-T-S-01-x"] {
            let value = bad.replace('T', TRACE).replace('S', SPAN);
            assert_eq!(parse(&value), None, "{value}");
        }
    }

    #[test]
    fn traceparent_malformed_is_refused() {
        let zeros = "0".repeat(32);
        let cases = [
            String::new(),
            "00".to_owned(),
            format!("00-{TRACE}-{SPAN}"),
            format!("00-{TRACE}-{SPAN}-"),
            format!("00-{TRACE}-{SPAN}-1"),
            format!("00-{TRACE}-{SPAN}-01-"),
            format!("00-{TRACE}-{SPAN}-01-extra"),
            format!("00-{TRACE}-{SPAN}-0g"),
            format!(" 00-{TRACE}-{SPAN}-01"),
            format!("0-{TRACE}-{SPAN}-01"),
            format!("000-{TRACE}-{SPAN}-01"),
            format!("0x-{TRACE}-{SPAN}-01"),
            format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            format!("00-{TRACE}-{}-01", SPAN.to_uppercase()),
            format!("00-{zeros}-{SPAN}-01"),
            format!("00-{TRACE}-{}-01", &zeros[..16]),
            format!("00-{}-{SPAN}-01", &TRACE[1..]),
            format!("00-{TRACE}1-{SPAN}-01"),
            format!("00_{TRACE}-{SPAN}-01"),
            format!("00-{TRACE}_{SPAN}-01"),
            format!("00-{TRACE}-{SPAN}_01"),
            format!("00-{}é-{SPAN}-01", &TRACE[2..]),
            format!("00-{TRACE}-{SPAN}-01,00-{TRACE}-{SPAN}-01"),
        ];
        for case in cases {
            assert_eq!(parse(&case), None, "{case}");
        }
    }
}

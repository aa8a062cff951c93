use std::net::IpAddr;

use ipnet::IpNet;

use super::address::fold;

/// A set of networks as sorted, disjoint ranges: a look-up is one binary search.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetSet {
    v4: Vec<(u32, u32)>,
    v6: Vec<(u128, u128)>,
}

impl NetSet {
    pub fn contains(&self, address: IpAddr) -> bool {
        match fold(address) {
            IpAddr::V4(address) => holds(&self.v4, address.to_bits()),
            IpAddr::V6(address) => holds(&self.v6, address.to_bits()),
        }
    }

    /// Whether it contains a sixteenth of all IPv4 addresses, or of all IPv6 addresses, or more: no
    /// networks of one owner do.
    pub fn is_most(&self) -> bool {
        let v4 = self.v4.iter().map(|(from, to)| u64::from(to - from) + 1);
        // A number less for each range: the whole of IPv6 has one address more than a `u128` can say.
        let v6 = self.v6.iter().map(|(from, to)| to - from);
        v4.sum::<u64>() >= 1 << 28 || v6.sum::<u128>() >= (1 << 124) - 1
    }

    pub fn overlaps(&self, other: &Self) -> bool {
        overlap(&self.v4, &other.v4) || overlap(&self.v6, &other.v6)
    }

    pub fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty()
    }
}

impl FromIterator<IpNet> for NetSet {
    fn from_iter<I: IntoIterator<Item = IpNet>>(nets: I) -> Self {
        let mut set = Self::default();
        for net in nets {
            match net {
                IpNet::V4(net) => set
                    .v4
                    .push((net.network().to_bits(), net.broadcast().to_bits())),
                IpNet::V6(net) => {
                    let (from, to) = (net.network().to_bits(), net.broadcast().to_bits());
                    set.v6.push((from, to));
                    // The meaning of a mapped network after conversion to IPv4: its part inside
                    // ::ffff:0:0/96.
                    let (low, high) = (from.max(MAPPED_FIRST), to.min(MAPPED_LAST));
                    if low <= high {
                        set.v4.push((low_half(low), low_half(high)));
                    }
                }
            }
        }
        set.v4 = merged(set.v4);
        set.v6 = merged(set.v6);
        set
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the low 32 bits are the IPv4 address"
)]
fn low_half(bits: u128) -> u32 {
    bits as u32
}

fn holds<T: Ord + Copy>(ranges: &[(T, T)], value: T) -> bool {
    let after = ranges.partition_point(|(from, _)| *from <= value);
    after > 0 && ranges[after - 1].1 >= value
}

fn overlap<T: Ord + Copy>(ranges: &[(T, T)], others: &[(T, T)]) -> bool {
    let meets = |(from, to): &(T, T)| {
        let after = others.partition_point(|(_, end)| end < from);
        others.get(after).is_some_and(|(start, _)| start <= to)
    };
    ranges.iter().any(meets)
}

fn merged<T: Ord + Copy>(mut ranges: Vec<(T, T)>) -> Vec<(T, T)> {
    ranges.sort_unstable();
    let mut merged: Vec<(T, T)> = Vec::with_capacity(ranges.len());
    for (from, to) in ranges {
        match merged.last_mut() {
            Some(last) if from <= last.1 => last.1 = last.1.max(to),
            _ => merged.push((from, to)),
        }
    }
    merged
}

const MAPPED_FIRST: u128 = 0xffff_0000_0000;
const MAPPED_LAST: u128 = 0xffff_ffff_ffff;

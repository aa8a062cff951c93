//! Networks of clients and of proxies.

use std::net::IpAddr;

use crate::reading::{At, Context, Place, Text, forms};
use ipnet::IpNet;
use tollgate_policy::identity::address::NetSet;

forms! {
    /// A network, or one address.
    Network -> IpNet = network;
    ExemptNetworks -> NetSet as Vec<At<Network>> = |list, context| {
        let (set, most) = set(list);
        if let Some(place) = most {
            context
                .warning("clients of the whole internet are exempt", place, "no limit applies to them")
                .help("name the networks of your own clients, such as \"192.0.2.0/24\"; mode = \"off\" switches a limit off");
        }
        Some(set)
    };
    ProxyNetworks -> NetSet as Vec<At<Network>> = |list, context| {
        let (set, most) = set(list);
        if let Some(place) = most {
            let label = "so each client chooses the address it is counted by";
            context
                .warning("clients of the whole internet are trusted proxies", place, label)
                .help("name the networks of your own proxies, such as \"10.0.0.0/8\"");
        }
        Some(set)
    };
}

/// The networks of a list, and the place of those that are far more than anybody's own, if they are.
fn set(list: &At<Vec<At<IpNet>>>) -> (NetSet, Option<Place>) {
    let of = |networks: &[At<IpNet>]| -> NetSet {
        networks.iter().map(|network| network.value).collect()
    };
    let whole = of(list);
    let most = whole.is_most().then(|| {
        let alone = |network: &&At<IpNet>| of(std::slice::from_ref(*network)).is_most();
        list.iter()
            .find(alone)
            .map_or(list.place, |network| network.place)
    });
    (whole, most)
}

fn network(text: &At<Text>, context: &mut Context<'_>) -> Option<IpNet> {
    let written = text.as_str();
    if let Ok(address) = written.parse::<IpAddr>() {
        return Some(IpNet::from(address));
    }
    match written.parse::<IpNet>() {
        Ok(net) if net.trunc() == net => return Some(net),
        Ok(net) => {
            let title = format!("`{written}` has bits below its prefix");
            let label = format!("did you mean `{}`?", net.trunc());
            let help = format!(
                "one address is written without a prefix: \"{}\"",
                net.addr()
            );
            context.error(title, text.place, label).help(help);
        }
        Err(_) => {
            let title = format!("`{written}` is not a network");
            context
                .error(title, text.place, "an address with a prefix was expected")
                .help("\"10.0.0.0/8\", \"2001:db8::/32\" and \"192.0.2.7\" are networks");
        }
    }
    None
}

//! Networks of clients and of proxies.

use std::net::IpAddr;

use crate::reading::{At, Context, Text, forms};
use ipnet::IpNet;
use tollgate_policy::identity::address::NetSet;

forms! {
    /// A network, or one address.
    Network -> IpNet = network;
    ExemptNetworks -> NetSet as Vec<At<Network>> = |list, context| {
        let title = "clients of the whole internet are exempt";
        let help = "name the networks of your own clients, such as \"192.0.2.0/24\"; mode = \"off\" switches a limit off";
        Some(set(list, title, "no limit applies to them", help, context))
    };
    ProxyNetworks -> NetSet as Vec<At<Network>> = |list, context| {
        let title = "clients of the whole internet are trusted proxies";
        let label = "so each client chooses the address it is counted by";
        let help = "name the networks of your own proxies, such as \"10.0.0.0/8\"";
        Some(set(list, title, label, help, context))
    };
}

/// The networks of a list; warns of those that are far more than anybody's own.
fn set(
    list: &At<Vec<At<IpNet>>>,
    title: &str,
    label: &str,
    help: &str,
    context: &mut Context<'_>,
) -> NetSet {
    let whole: NetSet = list.iter().map(|network| network.value).collect();
    if whole.is_most() {
        let is_most = |network: &&At<IpNet>| NetSet::from_iter([network.value]).is_most();
        let alone = list.iter().find(is_most);
        let place = alone.map_or(list.place, |network| network.place);
        context.warning(title, place, label).help(help);
    }
    whole
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

//! `[address]`: networks, and whether trust in proxies is stated once.

use std::net::IpAddr;

use crate::context::Context;
use crate::declare::forms;
use crate::reader::Table;
use crate::source::At;
use crate::text::Text;
use ipnet::IpNet;
use tollgate_policy::address::{AddressPolicy, NetSet};

forms! {
    /// A network, or one address.
    Network -> IpNet = network;
    /// The network of a proxy.
    ProxyNetwork -> IpNet = |text, context| {
        let network = network(text, context)?;
        if network.prefix_len() == 0 {
            let label = "so each client chooses the address it is counted by";
            context
                .warning("every client is a trusted proxy", text.place, label)
                .help("name the networks of your own proxies, such as \"10.0.0.0/8\"");
        }
        Some(network)
    };
    /// A set of networks.
    Networks -> NetSet as Vec<Network> = |list, _| Some(list.iter().copied().collect());
    /// The networks of proxies.
    ProxyNetworks -> NetSet as Vec<ProxyNetwork> = |list, _| Some(list.iter().copied().collect());
}

fn network(text: &At<Text>, context: &mut Context<'_>) -> Option<IpNet> {
    let written = text.as_str();
    if let Ok(address) = written.parse::<IpAddr>() {
        return Some(IpNet::from(address));
    }
    match written.parse::<IpNet>() {
        Ok(net) if net.trunc() == net => return Some(net),
        Ok(net) => {
            let title = format!("`{written}` has bits beyond its prefix");
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

/// Proxies are trusted by their addresses or by their number.
pub(crate) fn check_address(address: &AddressPolicy, table: &Table<'_>, context: &mut Context<'_>) {
    let places = (table.place("trusted_hops"), table.place("trusted_proxies"));
    if let (Some(hops), Some(proxies)) = places {
        let title = "proxies are trusted by their addresses or by their number";
        context.either(title, hops, proxies).help(
            "addresses are safer: a client that reaches the gateway past the proxies is then not believed",
        );
    }
    let places = (table.place("trusted_hops"), table.place("header"));
    if let (Some(hops), Some(header)) = places
        && address.header.of_client().is_some()
    {
        let title = "a header that has the client alone is believed by the address of the proxy";
        context
            .either(title, hops, header)
            .help("write `trusted_proxies` in place of `trusted_hops`");
    }
}

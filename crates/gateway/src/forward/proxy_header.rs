//! The PROXY protocol header on connections to an upstream: the address of the client.

use std::net::{IpAddr, SocketAddr};

use proxy_header::{ProxiedAddress, ProxyHeader};
use tollgate_policy::upstream::ProxyProtocol;

/// The header of a connection to `to` that carries a request from `from`; empty if none is sent.
pub(super) fn header(
    version: ProxyProtocol,
    from: Option<SocketAddr>,
    to: Option<SocketAddr>,
) -> Vec<u8> {
    let header = match from.zip(to) {
        Some((from, to)) => ProxyHeader::with_address(one_family(from, to)),
        None => ProxyHeader::with_local(),
    };
    let mut out = Vec::new();
    match version {
        ProxyProtocol::Off => Ok(()),
        ProxyProtocol::V1 => header.encode_v1(&mut out),
        ProxyProtocol::V2 => header.encode_v2(&mut out),
    }
    .expect("two addresses of one family can be encoded");
    out
}

/// The header supports only one address family, so an IPv4 end beside an IPv6 one becomes a mapped address.
fn one_family(from: SocketAddr, to: SocketAddr) -> ProxiedAddress {
    let plain = |end: SocketAddr| SocketAddr::new(end.ip().to_canonical(), end.port());
    let mapped = |end: SocketAddr| match end.ip() {
        IpAddr::V4(address) => SocketAddr::new(address.to_ipv6_mapped().into(), end.port()),
        IpAddr::V6(_) => end,
    };
    let (from, to) = (plain(from), plain(to));
    if from.is_ipv4() == to.is_ipv4() {
        ProxiedAddress::stream(from, to)
    } else {
        ProxiedAddress::stream(mapped(from), mapped(to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(text: &str) -> Option<SocketAddr> {
        Some(text.parse().expect("an address"))
    }

    #[test]
    fn the_text_form() {
        let text =
            |from, to| String::from_utf8(header(ProxyProtocol::V1, from, to)).expect("ASCII");
        assert_eq!(
            text(end("192.0.2.1:5"), end("198.51.100.2:80")),
            "PROXY TCP4 192.0.2.1 198.51.100.2 5 80\r\n"
        );
        assert_eq!(
            text(end("[2001:db8::1]:5"), end("[::1]:80")),
            "PROXY TCP6 2001:db8::1 ::1 5 80\r\n"
        );
        assert_eq!(
            text(end("192.0.2.1:5"), end("[::1]:80")),
            "PROXY TCP6 ::ffff:192.0.2.1 ::1 5 80\r\n"
        );
        assert_eq!(text(None, end("[::1]:80")), "PROXY UNKNOWN\r\n");
    }

    #[test]
    fn the_binary_form() {
        let bytes = header(
            ProxyProtocol::V2,
            end("192.0.2.1:258"),
            end("198.51.100.2:80"),
        );
        assert_eq!(&bytes[..12], b"\r\n\r\n\0\r\nQUIT\n");
        assert_eq!(
            &bytes[12..],
            [
                0x21, 0x11, 0, 12, 192, 0, 2, 1, 198, 51, 100, 2, 1, 2, 0, 80
            ]
        );
        assert_eq!(
            header(ProxyProtocol::V2, end("[::1]:1"), end("[::1]:2")).len(),
            16 + 36
        );
        assert_eq!(
            &header(ProxyProtocol::V2, None, None)[12..],
            [0x20, 0, 0, 0]
        );
    }
}

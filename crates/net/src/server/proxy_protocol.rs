//! Reads the PROXY protocol header, versions 1 and 2: the client's address, by a load balancer.
//!
//! It is read before anything else, and no byte beyond it, because TLS may follow.

use std::io;
use std::net::SocketAddr;

use proxy_header::{ParseConfig, ProxyHeader};
use tokio::io::{AsyncRead, AsyncReadExt};

/// Reads the header; `None` if it names no address: the load balancer sends a health check of its
/// own, or the address family has no IP addresses.
pub async fn read<S: AsyncRead + Unpin>(stream: &mut S) -> io::Result<Option<SocketAddr>> {
    let mut header = vec![0; SIGNATURE.len()];
    stream.read_exact(&mut header).await?;
    if header == SIGNATURE {
        read_version_2(stream, &mut header).await?;
    } else if header.starts_with(b"PROXY ") {
        read_version_1(stream, &mut header).await?;
    } else {
        return Err(invalid("no PROXY protocol header"));
    }
    let config = ParseConfig {
        include_tlvs: false,
        allow_v1: true,
        allow_v2: true,
    };
    let (parsed, length) =
        ProxyHeader::parse(&header, config).map_err(|error| invalid(&error.to_string()))?;
    if length != header.len() {
        return Err(invalid("the PROXY protocol header has no clear end"));
    }
    Ok(parsed.proxied_address().map(|address| address.source))
}

async fn read_version_2<S: AsyncRead + Unpin>(
    stream: &mut S,
    header: &mut Vec<u8>,
) -> io::Result<()> {
    // Version and command, family, and the length of what follows.
    let mut fixed = [0; 4];
    stream.read_exact(&mut fixed).await?;
    header.extend_from_slice(&fixed);
    let rest = usize::from(u16::from_be_bytes([fixed[2], fixed[3]]));
    if rest > REST_MAX {
        return Err(invalid("the PROXY protocol header is too long"));
    }
    let start = header.len();
    header.resize(start + rest, 0);
    stream.read_exact(&mut header[start..]).await?;
    Ok(())
}

async fn read_version_1<S: AsyncRead + Unpin>(
    stream: &mut S,
    header: &mut Vec<u8>,
) -> io::Result<()> {
    // Read byte by byte, because the bytes after the line belong to the next protocol and the
    // line's length is unknown.
    while !header.ends_with(b"\r\n") {
        if header.len() >= LINE_MAX {
            return Err(invalid("the PROXY protocol line does not end"));
        }
        header.push(stream.read_u8().await?);
    }
    Ok(())
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// The longest line of version 1 (section 2.1).
const LINE_MAX: usize = 107;
/// More than any load balancer sends; the length field allows 65,535.
const REST_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::read;

    #[tokio::test]
    async fn both_versions_are_read_to_their_end_and_no_further() {
        let source = "192.0.2.7:4711".parse().expect("an address");
        let header = proxy_header::ProxyHeader::with_address(proxy_header::ProxiedAddress::stream(
            source, source,
        ));
        let (mut one, mut two) = (Vec::new(), Vec::new());
        header.encode_v1(&mut one).expect("encoded");
        header.encode_v2(&mut two).expect("encoded");
        for bytes in [one, two] {
            let whole = [&bytes[..], b"GET /"].concat();
            let mut left = &whole[..];
            assert_eq!(read(&mut left).await.expect("a header"), Some(source));
            assert_eq!(left, b"GET /");
            // Cut short anywhere it is an error, never a panic and never an address.
            for end in 0..bytes.len() {
                assert!(read(&mut &bytes[..end]).await.is_err());
            }
        }
        assert_eq!(
            read(&mut &b"PROXY UNKNOWN\r\n"[..])
                .await
                .expect("a header"),
            None
        );
    }

    #[tokio::test]
    async fn proxy_protocol_invalid_header_is_refused() {
        let endless = [b"PROXY TCP4 ".as_slice(), &[b'1'; 200]].concat();
        let huge = [super::SIGNATURE, &[0x21, 0x11, 0xff, 0xff], &[0; 70_000]].concat();
        for bytes in [
            &b"GET / HTTP/1.1\r\n"[..],
            b"PROXY TCP4 x y 1 2\r\n",
            &endless,
            &huge,
        ] {
            assert!(
                read(&mut &bytes[..]).await.is_err(),
                "{:?}",
                String::from_utf8_lossy(bytes)
            );
        }
    }
}

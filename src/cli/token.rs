//! The bearer token of an operator, and the gateways it is sent to.

use std::net::IpAddr;
use std::path::Path;

use super::load;

/// It has no debug form, because it is a secret.
pub(super) struct Token {
    text: String,
    /// Whether it is sent over a network, too.
    everywhere: bool,
}

impl Token {
    /// The token in `file`, which is sent to every gateway; without a file, the one of the
    /// environment, which stays on this machine.
    ///
    /// Admin listeners have no TLS. TOLLGATE_TOKEN is set for all commands of a shell, so a command
    /// alone does not say that the operator accepts a token in clear on the network; a file that the
    /// command names does.
    pub(super) fn find(file: Option<&Path>) -> Result<Option<Self>, String> {
        let (source, text) = match file {
            Some(file) => {
                let source = format!("--token-file {}", file.display());
                match std::fs::read_to_string(file) {
                    Ok(text) => (source, text),
                    Err(error) => return Err(format!("{source}: {error}")),
                }
            }
            None => match load::environment_lossy(VARIABLE) {
                Some(text) => (VARIABLE.to_owned(), text),
                None => return Ok(None),
            },
        };
        let text = text.trim();
        if text.is_empty() {
            return Err(format!("{source}: the token is empty"));
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(format!(
                "{source}: the token has characters that a header cannot contain"
            ));
        }
        Ok(Some(Self {
            text: text.to_owned(),
            everywhere: file.is_some(),
        }))
    }

    /// The token for a request to an address, or to a Unix socket (`None`); `None`: it is not sent there.
    pub(super) fn for_address(&self, address: Option<IpAddr>) -> Option<&str> {
        let is_local = address.is_none_or(|address| address.to_canonical().is_loopback());
        (self.everywhere || is_local).then_some(&self.text)
    }
}

/// Why a change is not asked for at an address that the token is not sent to.
pub(super) const NOT_SENT: &str = "nothing was sent: TOLLGATE_TOKEN is sent only over a Unix socket or to a loopback address; \
     name a file with --token-file to send its token in clear over the network";

const VARIABLE: &str = "TOLLGATE_TOKEN";

#[cfg(test)]
mod tests {
    use super::*;

    fn token(everywhere: bool) -> Token {
        Token {
            text: "secret".to_owned(),
            everywhere,
        }
    }

    #[test]
    fn token_of_the_environment_is_not_sent_over_a_network() {
        let address = |text: &str| Some(text.parse::<IpAddr>().expect("an address"));
        let local = ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"].map(address);
        for place in local.into_iter().chain([None]) {
            let sent = token(false).for_address(place).map(str::to_owned);
            assert_eq!(sent.as_deref(), Some("secret"), "{place:?}");
        }
        for text in [
            "192.0.2.1",
            "10.0.0.1",
            "2001:db8::1",
            "fe80::1",
            "::ffff:10.0.0.1",
        ] {
            assert_eq!(token(false).for_address(address(text)), None, "{text}");
            assert_eq!(
                token(true).for_address(address(text)),
                Some("secret"),
                "{text}"
            );
        }
    }
}

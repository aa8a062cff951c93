//! One order of a certificate, from the account to the file.

use std::fs::File;
use std::io;
use std::time::Duration;

use instant_acme::{
    Account, AuthorizationStatus, ChallengeType, Error, Identifier, NewAccount, NewOrder,
    OrderStatus, RetryPolicy,
};

use super::authority::Authority;
use super::certificate::Leaf;
use super::folder::{Challenge, Folder};
use tollgate_config::settings::{Acme as Settings, AcmeChallenge, Word as _};

pub(super) struct Order {
    pub(super) settings: Settings,
    pub(super) folder: Folder,
    /// Held until it has ended.
    pub(super) _lock: File,
}

/// Why there is no certificate, and how long the authority wants to be left alone.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) error: String,
    pub(super) wait: Option<Duration>,
}

impl Failed {
    pub(super) fn because(error: String) -> Self {
        Self { error, wait: None }
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::because(error.to_string())
    }
}

impl Order {
    /// Makes the order. Returns it with its result, which is recorded before another gateway may order.
    pub(super) async fn run(self) -> (Self, Result<(), Failed>) {
        let authority = Authority::of(&self.settings);
        let made = tokio::time::timeout(ORDER_WITHIN, self.make(&authority)).await;
        let late = |_| {
            let error = format!("the order took more than {ORDER_WITHIN:?}");
            Err(Failed::because(error))
        };
        let made = made.unwrap_or_else(late).map_err(|failed| Failed {
            wait: authority.wait(),
            ..failed
        });
        (self, made)
    }

    async fn make(&self, authority: &Authority) -> Result<(), Failed> {
        // A crash leaves the challenges of the order that it broke off.
        self.folder.tidy();
        let _posted = Posted(&self.folder);
        self.folder.reserve().map_err(unkept)?;
        let account = self.account(authority).await?;
        let hosts = self.settings.hosts.iter().cloned();
        let hosts: Vec<Identifier> = hosts.map(Identifier::Dns).collect();
        let order = account.new_order(&NewOrder::new(&hosts)).await;
        let mut order = order.inspect_err(|error| self.forget_unknown(error))?;
        self.prove(&mut order).await?;
        let patience = RetryPolicy::new().timeout(POLL_WITHIN);
        let status = match order.state().status {
            OrderStatus::Ready => Ok(OrderStatus::Ready),
            _ => order.poll_ready(&patience).await,
        };
        if !matches!(status, Ok(OrderStatus::Ready)) {
            let reasons = reasons(&mut order).await;
            return Err(match status {
                Err(error) if reasons.is_empty() => error.into(),
                _ => Failed::because(format!("the authority checked: {reasons}")),
            });
        }
        let key = order.finalize().await?;
        let chain = order.poll_certificate(&patience).await?;
        let file = format!("{key}{chain}");
        if Leaf::of(self.folder.path(), file.as_bytes()).is_none() {
            let error = "the authority sent a certificate that cannot be used";
            return Err(Failed::because(error.to_owned()));
        }
        self.folder.keep_certificate(&file).map_err(unkept)
    }

    /// The account of this folder; a new one if there is none, or none that can be read.
    async fn account(&self, authority: &Authority) -> Result<Account, Failed> {
        let builder = || Account::builder_with_http(Box::new(authority.clone()));
        let kept = self.folder.account();
        // What is wrong with the file is not said, because it has the key.
        if let Some(kept) = kept.and_then(|kept| serde_json::from_slice(&kept).ok()) {
            return Ok(builder().from_credentials(kept).await?);
        }
        let contact = self.settings.email.as_ref();
        let contact: Vec<String> = contact
            .iter()
            .map(|email| format!("mailto:{email}"))
            .collect();
        let contact: Vec<&str> = contact.iter().map(String::as_str).collect();
        let new = NewAccount {
            contact: &contact,
            terms_of_service_agreed: true,
            only_return_existing: false,
        };
        let directory = self.settings.directory.clone();
        let (account, credentials) = builder().create(&new, directory, None).await?;
        let credentials = serde_json::to_vec(&credentials).map_err(Error::from)?;
        self.folder.keep_account(&credentials).map_err(unkept)?;
        Ok(account)
    }

    /// Forgets an account that the authority does not know any more: the next order makes a new one.
    fn forget_unknown(&self, error: &Error) {
        if is_of_type(error, "accountDoesNotExist")
            && let Err(error) = self.folder.forget_account()
        {
            tracing::warn!(%error, "the account cannot be removed");
        }
    }

    /// Answers the challenges of all hosts that the authority has not checked yet.
    async fn prove(&self, order: &mut instant_acme::Order) -> Result<(), Failed> {
        let kind = || match self.settings.challenge {
            AcmeChallenge::TlsAlpn01 => ChallengeType::TlsAlpn01,
            AcmeChallenge::Http01 => ChallengeType::Http01,
        };
        let mut hosts = order.authorizations();
        while let Some(host) = hosts.next().await {
            let mut host = host?;
            if host.status == AuthorizationStatus::Valid {
                continue;
            }
            let name = host.identifier().to_string();
            let Some(challenge) = host.challenge(kind()) else {
                let kind = self.settings.challenge.word();
                let error = format!("the authority does not offer {kind} for {name}");
                return Err(Failed::because(error));
            };
            let challenge = Challenge {
                token: challenge.token.clone(),
                host: name,
                answer: challenge.key_authorization().as_str().to_owned(),
            };
            self.folder.keep_challenge(&challenge).map_err(unkept)?;
        }
        // The authority may ask any of the gateways.
        tokio::time::sleep(super::LOOK_EVERY * 3).await;
        let mut hosts = order.authorizations();
        while let Some(host) = hosts.next().await {
            let mut host = host?;
            if host.status != AuthorizationStatus::Valid
                && let Some(mut challenge) = host.challenge(kind())
            {
                challenge.set_ready().await?;
            }
        }
        Ok(())
    }
}

/// Why the authority does not accept some hosts.
async fn reasons(order: &mut instant_acme::Order) -> String {
    let mut reasons = Vec::new();
    let mut hosts = order.authorizations();
    while let Some(Ok(mut host)) = hosts.next().await {
        let _ = host.refresh().await;
        let name = host.identifier().to_string();
        let errors = host.challenges.iter().filter_map(|one| one.error.as_ref());
        reasons.extend(errors.map(|error| format!("{name}: {error}")));
    }
    reasons.join("; ")
}

/// Whether an authority refused with this type of RFC 8555 section 6.7.
fn is_of_type(error: &Error, name: &str) -> bool {
    let Error::Api(problem) = error else {
        return false;
    };
    let kind = problem.r#type.as_deref();
    kind.is_some_and(|kind| kind.ends_with(name))
}

fn unkept(error: io::Error) -> Failed {
    Failed::because(format!("the state cannot be written: {error}"))
}

/// What an order has in the folder. It goes with the order, whether that ends or is broken off.
struct Posted<'f>(&'f Folder);

impl Drop for Posted<'_> {
    fn drop(&mut self) {
        self.0.tidy();
    }
}

const ORDER_WITHIN: Duration = Duration::from_secs(600);
const POLL_WITHIN: Duration = Duration::from_secs(240);

//! Admits a request or refuses it: does what each step of the order of admission asks for, and checks
//! what only a gateway checks.

use std::cell::OnceCell;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::Request;
use http_body::Body;

use super::admitted::{Admitted, Next, balance_hash};
use super::checks;
use super::gateway::Gateway;
use super::read_body::body_elsewhere;
use super::request_context::RequestContext;
use super::snapshot::Snapshot;
use crate::framing::RequestTarget;
use crate::headers::RequestHeaders;
use crate::rejection::Rejection;
use tollgate_admission::{Admission, Refusal, RequestView, Step};
use tollgate_limiter::wait_until;
use tollgate_net::server::{ConnInfo, Inbound};
use tollgate_policy::{BodyFacts, Descriptor, FilledEdits, Identified, Match, Policy, WantedFacts};

impl Gateway {
    /// Admits a request, or returns the reason why it is refused. `edits` receives the route's
    /// changes of the response as far as they are known then, because a refusal carries them too.
    pub(crate) async fn admit<'s>(
        &self,
        snapshot: &'s Snapshot,
        connection: &ConnInfo,
        arrived: Arrived<'_>,
        context: &mut RequestContext,
        edits: &mut FilledEdits<'s>,
    ) -> Result<(RequestTarget, Admitted<'s>), Rejection> {
        let Arrived {
            head,
            body,
            headers,
        } = arrived;
        let policy = &snapshot.policy;
        let target = checks::normalise(snapshot, head, headers, context)?;
        let admitted = {
            let facts = OnceCell::new();
            let mut described = describe(policy, connection, &target, head)?;
            described.is_body_elsewhere = body.is_none();
            context.client = described.client;
            let mut driver = Driver {
                gateway: self,
                snapshot,
                connection,
                target: &target,
                head,
                body,
                context,
            };
            let (length, seconds) = (driver.body_length(), driver.context.seconds());
            let mut request = RequestView::new(policy, &described, length, seconds);
            // A proxy that asks for a decision sends the request to its own upstream, whose budget
            // must hold.
            request.passes_on = driver.body.is_some();
            request.under_way = Some(&self.side.shared.under_way);
            let mut admission = Admission::default();
            let outcome = driver.drive(&mut admission, &mut request, &facts).await;
            driver.context.count_near();
            driver.context.caller.clone_from(&admission.who.caller);
            let Some(matched) = request.matched.as_ref().filter(|_| !request.is_unread()) else {
                return Err(outcome.err().unwrap_or(Rejection::NoRoute));
            };
            let changes = &policy.routes[matched.route].response_headers;
            *edits = policy.edits(changes, matched, &admission.who, &described);
            outcome?;
            driver.admitted(matched, &described, &admission.who)
        };
        Ok((target, admitted))
    }
}

pub(crate) struct Arrived<'a> {
    pub(crate) head: &'a mut Request<()>,
    /// `None`: the program that asks about the request keeps its body.
    pub(crate) body: Option<&'a mut Inbound>,
    pub(crate) headers: &'a RequestHeaders,
}

struct Driver<'a, 's> {
    gateway: &'a Gateway,
    snapshot: &'s Snapshot,
    connection: &'a ConnInfo,
    target: &'a RequestTarget,
    head: &'a Request<()>,
    body: Option<&'a mut Inbound>,
    context: &'a mut RequestContext,
}

impl<'s> Driver<'_, 's> {
    /// Does what each step asks for. Work that few requests need is boxed, so that the future of the
    /// others is small.
    async fn drive<'r>(
        &mut self,
        admission: &mut Admission,
        request: &mut RequestView<'_, 'r>,
        facts: &'r OnceCell<BodyFacts>,
    ) -> Result<(), Rejection> {
        let (policy, limiter) = (&self.snapshot.policy, &self.snapshot.limiter);
        let side = &self.gateway.side;
        let mut now = self.context.account.at;
        let mut turned_away = self.check_route(request)?;
        loop {
            match admission.step(&mut self.context.account, request, limiter, now) {
                Step::Read(asked) => match Box::pin(self.read(asked)).await {
                    Ok(read) => {
                        request.read(Some(facts.get_or_init(|| read)));
                        turned_away = self.check_route(request)?;
                    }
                    Err(rejection) => turned_away = Some(turn_away(request, rejection)),
                },
                Step::Look => Box::pin(admission.look(&mut self.context.account, limiter)).await,
                Step::Draw => {
                    let asked = match admission.draw(&mut self.context.account, limiter) {
                        Some(draw) => {
                            Box::pin(draw).await;
                            true
                        }
                        None => false,
                    };
                    if asked {
                        let asked_at = now;
                        now = side.shared.clock.now();
                        self.context.store_took(now.since(asked_at));
                    }
                }
                Step::Wait => {
                    let wait = admission.wait(&side.shared.clock);
                    Box::pin(wait_counted(&side.shared.held, wait)).await;
                    now = side.shared.clock.now();
                }
                Step::Hold(due) => {
                    let hold = wait_until(&side.shared.clock, due);
                    Box::pin(wait_counted(&side.shared.held, hold)).await;
                }
                Step::Admit => return Ok(()),
                Step::Refuse(refusal) => {
                    return Err(match (refusal, turned_away) {
                        (Refusal::Denied, _) => self.context.denial(),
                        (Refusal::Unidentified(refusal), _) => self.snapshot.unidentified(refusal),
                        (Refusal::Unavailable(unavailable), _) => Rejection::StoreDown(unavailable),
                        (Refusal::TurnedAway, Some(rejection)) => *rejection,
                        (Refusal::NoRoute | Refusal::TurnedAway, _) => {
                            checks::unrouted(policy, request.described)
                        }
                    });
                }
            }
        }
    }

    /// Refuses a request that the route does not accept from any caller. One that is refused for its
    /// body is charged first.
    fn check_route(
        &mut self,
        request: &mut RequestView<'_, '_>,
    ) -> Result<Option<Box<Rejection>>, Rejection> {
        let Some(matched) = &request.matched else {
            return Ok(None);
        };
        self.context.account.route = Some(matched.route);
        let routes = &self.snapshot.policy.routes;
        let accepted = if request.is_unread() && request.asked.routes() {
            // The body selects the route, so only a length that every possible route refuses is refused.
            let possible = request.asking.iter().chain([&matched.route]);
            let possible = possible.map(|route| &routes[*route]);
            checks::check_length(self.snapshot, possible, self.body_length())
        } else {
            let (method, length) = (self.head.method(), self.body_length());
            let route = &routes[matched.route];
            checks::check_route(self.snapshot, route, self.target, method, length)
        };
        match accepted {
            Ok(()) => Ok(None),
            Err(Rejection::TooBig) => Ok(Some(turn_away(request, Rejection::TooBig))),
            Err(rejection) => Err(rejection),
        }
    }

    async fn read(&mut self, asked: WantedFacts) -> Result<BodyFacts, Rejection> {
        let (snapshot, target, head) = (self.snapshot, self.target, self.head);
        let mut facts = match &mut self.body {
            Some(body) => {
                let window = self.connection.window.clone();
                let gateway = self.gateway;
                let read = gateway.read_body(snapshot, window, asked, target, head, body);
                read.await?
            }
            None => body_elsewhere(&snapshot.policy, asked, head.headers())?,
        };
        self.context.calls = facts.take_calls().map(Box::new);
        self.context.hides_usage = self.body.is_some() && facts.lacks_usage;
        Ok(facts)
    }

    /// The length of the body, if it is known before the body is read.
    fn body_length(&self) -> Option<u64> {
        let body = self.body.as_ref()?;
        if body.is_end_stream() {
            Some(0)
        } else {
            let length = body.size_hint().exact()?;
            Some(length.saturating_sub(self.context.added_to_body()))
        }
    }

    fn admitted(
        &self,
        matched: &Match<'_>,
        described: &Descriptor<'_>,
        who: &Identified,
    ) -> Admitted<'s> {
        let policy = &self.snapshot.policy;
        let route = &policy.routes[matched.route];
        let over_limit = route.over_limit(self.context.account.target);
        if over_limit.is_some() {
            self.context.count_passed_on();
        }
        let over_limit = over_limit.map(|over| over.upstream);
        let upstream = over_limit.or(route.target.upstream());
        Admitted {
            route,
            request_edits: policy.edits(&route.request_headers, matched, who, described),
            next: match over_limit {
                Some(upstream) if !self.target.last_hop => Next::Forward(upstream),
                _ => Next::of_route(policy, matched, described, who, self.target, self.head),
            },
            caller: balance_hash(policy, upstream, who, described),
        }
    }
}

/// Has a request charged before it is refused for this reason. (Boxed: few requests are.)
fn turn_away(request: &mut RequestView<'_, '_>, rejection: Rejection) -> Box<Rejection> {
    request.turned_away = Some(rejection.status());
    Box::new(rejection)
}

pub(crate) fn describe<'r>(
    policy: &Policy,
    connection: &'r ConnInfo,
    target: &'r RequestTarget,
    head: &'r Request<()>,
) -> Result<Descriptor<'r>, Rejection> {
    let subject = connection
        .tls
        .as_ref()
        .and_then(|tls| tls.client_subject.as_deref());
    // Most hosts have already been found to be in normal form.
    let plain = target
        .plain_host
        .and_then(|length| target.host.as_ref()?.to_str().ok()?.get(..length));
    let (method, uri, headers) = (head.method(), head.uri(), head.headers());
    policy
        .describe(plain, method, uri, headers, connection.peer(), subject)
        .map_err(Rejection::Unmatchable)
}

/// Counts a request among the waiting ones until dropped, so that every way the wait can end is counted.
struct Waiting<'c>(&'c AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

pub(crate) async fn wait_counted(held: &AtomicUsize, wait: impl Future<Output = ()>) {
    held.fetch_add(1, Ordering::Relaxed);
    let _waiting = Waiting(held);
    wait.await;
}

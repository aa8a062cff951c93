//! `[upstreams.*]`, and the upstreams that routes name by their URL.

use std::sync::Arc;

use crate::raw::RawFile;
use crate::reading::{At, Context, Text, literal};
use crate::values::servers::server;
use tollgate_limit::Micros;
use tollgate_policy::routes::{Route, RouteLimit};
use tollgate_policy::upstream::{HostPolicy, ServerAddress, Upstream};
use tollgate_policy::{Rule, SettleFrom};

#[derive(Debug, Default)]
pub(crate) struct Upstreams {
    pub(crate) list: Vec<Arc<Upstream>>,
    /// Whether egress mode is on: upstreams then get their own name as Host unless the file sets another.
    egress: bool,
}

impl Upstreams {
    pub(crate) fn new(raw: &RawFile, egress: bool, context: &mut Context<'_>) -> Self {
        let mut made = Self {
            egress,
            ..Self::default()
        };
        for (name, upstream) in super::entries_of(&raw.upstreams) {
            super::check_name(name, "upstream", context);
            if name.contains("://") || name.starts_with("builtin:") || name.starts_with("unix:") {
                let title = format!("`{}` cannot name an upstream", name.value);
                context.error(title, name.place, "it would be taken for a URL");
            }
            let written = context.place(&format!("upstreams.{}.host", name.value));
            made.add(name, written.is_some(), upstream.value.clone());
        }
        made
    }

    fn add(&mut self, name: &str, host_written: bool, mut upstream: Upstream) {
        upstream.name = name.into();
        // A Unix socket has no host name.
        let mut addresses = upstream.servers.iter().map(|server| &server.address);
        let named = addresses.all(|address| matches!(address, ServerAddress::Tcp(..)));
        if self.egress && named && !host_written {
            upstream.host = HostPolicy::Upstream;
        }
        self.list.push(Arc::new(upstream));
    }

    pub(crate) fn index(&self, name: &str) -> Option<usize> {
        self.list
            .iter()
            .position(|upstream| &*upstream.name == name)
    }

    /// The index of the upstream for a URL in a route; added if it is new.
    pub(crate) fn at_url(&mut self, text: &At<Text>, context: &mut Context<'_>) -> Option<usize> {
        if let Some(index) = self.index(text.as_str()) {
            return Some(index);
        }
        let servers = vec![server(text, context)?];
        let defaults = literal::<Upstream>("upstream", "{ servers = \"http://localhost\" }")?;
        let upstream = Upstream {
            servers,
            ..defaults
        };
        self.add(text.as_str(), false, upstream);
        Some(self.list.len() - 1)
    }

    /// Gives the upstreams of routes whose responses state their cost in the body the time of a
    /// language model, where the file writes none.
    pub(crate) fn wait_for_models(
        &mut self,
        routes: &[Route],
        rules: &[Rule],
        context: &Context<'_>,
    ) {
        let states_cost = |limit: &RouteLimit| {
            let settle = rules[limit.rule].settle.as_ref();
            settle.is_some_and(|settle| matches!(settle.from, SettleFrom::Json(_)))
        };
        for route in routes {
            for target in 0..=route.over_limit.len() {
                let over = route.over_limit(target).map(|over| over.upstream);
                let index = over.or(route.target.upstream());
                let Some(upstream) = index.and_then(|index| self.list.get_mut(index)) else {
                    continue;
                };
                if !route.limits_of(target).iter().any(states_cost) {
                    continue;
                }
                let name = Arc::clone(&upstream.name);
                let written = |key| context.place(&format!("upstreams.{name}.timeouts.{key}"));
                let timeouts = &mut Arc::make_mut(upstream).timeouts;
                for (key, timeout) in [
                    ("response", &mut timeouts.response),
                    ("idle", &mut timeouts.idle),
                ] {
                    if written(key).is_none() {
                        *timeout = MODEL_TIME;
                    }
                }
            }
        }
    }
}

/// How long a language model may take, as the clients of OpenAI and Anthropic wait for it.
const MODEL_TIME: Micros = Micros::from_secs(600);

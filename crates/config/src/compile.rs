//! From a text to a configuration: reads it, checks it, and builds what runs.

use std::path::PathBuf;
use std::sync::Arc;

use super::error::Diagnostic;
use super::include::{self, Tree};
use super::loader::{Loader, Unopened};
use super::quick;
use super::raw::RawFile;
use super::reading::{Context, Field, Mark, Problem, Problems, Program, Read, Severity, defaults};
use super::render::render;
use super::settings::{
    Admin, CompressedBodies, Decide, DecideListener, DecideProtocol, EncodedSlash, Log, Server,
    Traces,
};
use super::validate::limits::Surroundings;
use super::validate::together;
use super::validate::upstreams::Upstreams;
use super::validate::{self, names_of};
use super::validate::{domains, routes};
use super::{Config, ConfigError};
use tollgate_policy::identity::address::AddressPolicy;
use tollgate_policy::{BodySettings, Policy, PolicyParts, Responses};

pub(crate) fn compile(
    name: &str,
    text: String,
    files: Vec<PathBuf>,
    loader: &Loader<'_>,
) -> Result<Config, ConfigError> {
    let mut context = Context::new(loader.env, Problems::new(loader.unset));
    context.program = loader.program;
    context.files = files;
    let Tree {
        mut raw,
        broken_lines,
        is_foreign,
    } = include::read(name, text, &mut context);
    validate::limits::scope::name_sources(&mut raw, &mut context);
    let made = assemble(&raw, loader, &mut context);
    if let (Some(config), Some(opens), false) = (&made, loader.opens, context.problems.any_error())
    {
        for Unopened { key, what } in opens(config) {
            context.unopened(&key, what);
        }
    }
    let Context {
        mut sources,
        problems,
        mut files,
        ..
    } = context;
    // On a line that is not TOML, other mistakes are consequences of that; so may be keys that seem
    // to be missing.
    let is_toml = broken_lines.is_empty();
    let assumed = problems.assumed();
    let unset = if made.is_none() && !problems.any_error() {
        // The configuration cannot be built without their values.
        problems.unset()
    } else {
        Vec::new()
    };
    let on_toml = |problem: &Problem| {
        let line = |mark: &Mark| (mark.place.file, sources.position(mark.place).1 - 1);
        let first = problem.marks.first();
        let may_be_consequence = problem.missing || is_foreign;
        is_toml
            || problem.syntax
            || first.is_some_and(|mark| !may_be_consequence && !broken_lines.contains(&line(mark)))
    };
    let mut problems = problems.into_sorted();
    problems.retain(on_toml);
    let secrets = problems.iter().filter(|problem| problem.secret);
    for mark in secrets.filter_map(|problem| problem.marks.first()) {
        sources.mask(mark.place);
    }
    let is_error = |problem: &Problem| problem.severity == Severity::Error;
    match made {
        Some(config) if !problems.iter().any(is_error) => {
            files.sort();
            files.dedup();
            let warnings = problems.iter().map(|problem| match name {
                // Its lines and columns mean nothing to anybody.
                quick::COMMAND_LINE => format!("warning: {}", quick::by_option(problem, &sources)),
                _ => render(std::slice::from_ref(problem), &sources, false),
            });
            let diagnostics = problems
                .iter()
                .map(|problem| Diagnostic::of(problem, &sources));
            Ok(Config {
                warnings: warnings.collect(),
                diagnostics: diagnostics.collect(),
                assumed,
                files_read: files,
                ..config
            })
        }
        _ => {
            // With errors, a warning is usually their consequence: a limit is "never used" when its
            // only route is wrong.
            problems.retain(is_error);
            problems.extend(unset);
            Err(ConfigError {
                problems,
                sources,
                files,
            })
        }
    }
}

fn table<K: Read<Value = K> + Clone>(field: &Field<K>) -> K {
    field
        .get()
        .map_or_else(defaults::<K>, |at| at.value.clone())
}

/// Builds a configuration from what was read; `None` if mistakes, which were reported, prevent it.
fn assemble(raw: &RawFile, loader: &Loader<'_>, context: &mut Context<'_>) -> Option<Config> {
    let now = loader.now;
    if let Some(server) = raw.server.get() {
        validate::server::check_server(server, context);
    }
    let mut server: Server = table(&raw.server);
    if let Some(listen) = loader.listen {
        server.listen = vec![listen.clone()];
    }
    let admin: Admin = table(&raw.admin);
    let traces: Option<Traces> = raw.traces.get().map(|at| at.value.clone());
    let decide: Option<Decide> = raw.decide.get().map(|at| at.value.clone());
    // A gateway that only decides about descriptors needs no routes, and no listener for clients.
    let grpc = |one: &DecideListener| one.protocol == DecideProtocol::Grpc;
    let decides = decide
        .as_ref()
        .is_some_and(|decide| decide.listen.iter().all(grpc));
    let is_listener_written = loader.listen.is_some() || context.place("server.listen").is_some();
    let only_decides = raw.routes.is_absent() && !is_listener_written && decides;
    if only_decides {
        server.listen.clear();
    }
    let log: Log = table(&raw.log);
    let address: AddressPolicy = table(&raw.address);
    let responses: Responses = table(&raw.responses);
    validate::server::warn_of_expiry(&server, now, context);
    validate::server::check_admin(&admin, &server, context);
    if let Some(decide) = &decide {
        validate::server::check_decide(decide, &server, &admin, context);
    }
    let has_store = !raw.store.is_absent();
    let store = validate::store::store(&raw.store, context);
    let names: Vec<&str> = names_of(&raw.identities);
    let identities = validate::identities::identities(raw, &names, context);
    let (rules, files, rates) = decide.as_ref().map_or_else(Default::default, |decide| {
        (&decide.rules[..], &decide.envoy[..], &decide.overrides[..])
    });
    let described: Vec<&str> = rules
        .iter()
        .flat_map(|rule| rule.limits.iter().map(String::as_str))
        .collect();
    let overrides = validate::domains::overrides(rates, context);
    let around = Surroundings {
        identities: &names,
        store: store.as_ref(),
        has_store,
        now,
        egress: server.egress,
        has_admin: admin.listen.is_some(),
        resettable: !admin.operators.is_empty(),
        described: (&described, &overrides),
        prices: validate::prices::prices(raw, context),
        own_numbers: &identities.own_numbers,
    };
    let mut limits = validate::limits::limits(raw, &around, context);
    let compiler = domains::Compiler::new(raw, &mut limits, &around, &mut *context);
    let domains = compiler.domains(rules, files);
    let mut upstreams = Upstreams::new(raw, server.egress, context);
    let mut compiler = routes::Compiler {
        raw,
        identities: &names,
        limits: &limits,
        body: server.bounds.body,
        none: only_decides,
        decides,
        upstreams: &mut upstreams,
        context,
    };
    let routes = compiler.routes();
    upstreams.wait_for_models(&routes.list, &limits.rules, context);
    if context.program == Program::Service {
        validate::service::warn(raw, context);
    }
    together::check_cluster(&routes, &limits, store.as_ref(), context);

    // An identity that could not be built shifts the indices of those after it, so that they would
    // get the wrong policy.
    if identities.broken {
        return None;
    }
    let parts = PolicyParts {
        address,
        identities: identities.list,
        rules: limits.rules,
        upstreams: upstreams.list,
        routes: routes.list,
        domains,
        responses,
        egress: server.egress,
        keeps_slashes: server.encoded_slash == EncodedSlash::Keep,
        body: BodySettings {
            most: server.body_facts,
            skips_compressed: server.compressed_bodies == CompressedBodies::Skip,
        },
    };
    let policy = Policy::build(parts)
        .map_err(|errors| {
            for error in errors {
                together::build_error(error, raw, &routes.places, context);
            }
        })
        .ok()?;
    let tests = validate::tests_table::tests(raw, &policy.identities, context);
    together::warn(raw, &policy, &server, context);
    let listen = context.place("server.listen");
    let listen = listen.filter(|_| loader.listen.is_none());
    together::unaddressed(&policy, &server, listen, context);
    // The mistake in `[store]` is reported. Shared limits cannot be built without a store.
    if store.is_none() && has_store {
        return None;
    }
    Some(Config {
        server,
        admin,
        decide,
        traces,
        log,
        store,
        policy: Arc::new(policy),
        tests,
        caller_files: identities.caller_files,
        tiers: names_of(&raw.tiers)
            .into_iter()
            .map(str::to_owned)
            .collect(),
        warnings: Vec::new(),
        diagnostics: Vec::new(),
        assumed: Vec::new(),
        files_read: Vec::new(),
    })
}

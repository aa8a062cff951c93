//! Starts the admin listener of a gateway: hands it the state that it shows and changes.

use std::io;
use std::sync::Arc;

use super::{Core, StartError, run};
use crate::admin::{self, Admin};
use tollgate_config::settings::LogKeys;
use tollgate_telemetry::metrics::Samples;

impl Core {
    pub(super) fn serve_admin(
        self: &Arc<Self>,
        socket: Option<admin::Door>,
    ) -> Result<Option<Admin>, StartError> {
        let in_force = self.in_force();
        let Some((listen, socket)) = in_force.admin.listen.as_ref().zip(socket) else {
            return Ok(None);
        };
        let failed = StartError::admin(listen);
        let (status, reload, operators) = (Arc::clone(self), Arc::clone(self), Arc::clone(self));
        let webhook = in_force.admin.webhook.as_ref().map(|settings| {
            admin::Webhook::new(settings, self.gateway.clock.clone()).map_err(io::Error::other)
        });
        let webhook = webhook.transpose().map_err(&failed)?;
        if let Some(webhook) = webhook.clone() {
            // Here, not on the admin listener's thread: an event may come before that runs.
            webhook.follow(&self.events);
            let samples = move |samples: &mut Samples| webhook.samples(samples);
            self.gateway.metrics.source("webhook", samples);
        }
        let audit = admin::Audit::new(in_force.admin.audit.clone(), self.gateway.clock.clone());
        let (events, ends) = (self.events.clone(), audit.clone());
        self.overrides.on_change(move |event| {
            // A lift has the line of its operator.
            if !event.set && !event.lifted {
                admin::overrides::record_end(&ends, &event.one);
            }
            admin::overrides::emit(&events, event);
        });
        let options = admin::Options {
            hosts: in_force.admin.hosts.clone(),
            operators: Arc::new(move || operators.in_force().admin.operators.clone()),
            audit,
            log_levels: admin::LogLevels::new(
                in_force.log.level,
                self.gateway.clock.clone(),
                run::set_log_level,
            ),
            webhook,
            live: admin::Live {
                current: Arc::clone(&self.gateway.current),
                clock: self.gateway.clock.clone(),
                events: self.events.clone(),
                refusals: self.gateway.refusals.clone(),
                names: self.names,
                plain_keys: in_force.log.keys == LogKeys::Plain,
                waits: admin::Waits::default(),
                overrides: self.overrides.clone(),
                penalties: admin::Penalties::default(),
            },
            metrics: self.gateway.metrics.clone(),
            readiness: self.readiness.clone(),
            status: Arc::new(move || status.status()),
            reload: Arc::new(move || reload.reload()),
        };
        Admin::serve(socket, options).map(Some).map_err(failed)
    }
}

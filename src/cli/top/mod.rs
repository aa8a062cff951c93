//! `tollgate top`: who is refused now, in a terminal, live.

mod frame;
mod terminal;

use std::io::{self, IsTerminal};
use std::time::Duration;

use tokio::time::Instant;

use super::args::Top;
use super::gateway::Gateway;
use super::listeners;
use super::{BAD, GOOD, print_out};
use super::{Ended, Stop};
use crate::admin::figures::{Figures, PerSecond};
use frame::{Frame, View};
use terminal::{Key, Terminal};

pub(super) struct Seen {
    pub(super) name: String,
    /// Its figures, or why there are none.
    pub(super) reported: Result<Figures, String>,
}

pub(super) fn top(args: &Top) -> Ended {
    let gateways = listeners::asked_by(&args.gateways)?;
    if args.once {
        let seen = look(&gateways, &[]);
        let code = print_out(&Frame::new(&seen, None, &mut View::default()).to_string());
        let silent = seen.iter().all(|one| one.reported.is_err());
        return Ok(if silent { BAD } else { code });
    }
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        let what = "this is no terminal; --once prints one frame";
        return Err(Stop::Misuse(what.to_owned()));
    }
    let watched = watch(&gateways, Duration::from_millis(args.every.max(100)));
    watched.map_err(|error| error.to_string())?;
    Ok(GOOD)
}

/// Shows one frame after the other, until `q`, Ctrl-C or a signal.
fn watch(gateways: &[Gateway], every: Duration) -> io::Result<()> {
    let mut terminal = Terminal::open()?;
    let mut seen: Vec<Seen> = Vec::new();
    let mut view = View::default();
    loop {
        let asked = Instant::now();
        seen = look(gateways, &seen);
        let due = asked + every;
        loop {
            terminal.show(|size| Frame::new(&seen, Some(size), &mut view))?;
            match terminal.wait(due.saturating_duration_since(Instant::now()))? {
                Some(Key::Quit) => return Ok(()),
                Some(Key::Sort) => view.order = view.order.next(),
                Some(Key::Scroll(lines)) => view.top = view.top.saturating_add_signed(lines),
                Some(Key::Other) => {}
                None if Instant::now() >= due => break,
                None => {}
            }
        }
    }
}

fn look(gateways: &[Gateway], before: &[Seen]) -> Vec<Seen> {
    std::thread::scope(|scope| {
        let asked: Vec<_> = gateways
            .iter()
            .map(|gateway| scope.spawn(|| gateway.get::<Figures>("/api/v1/figures")))
            .collect();
        let reported = asked.into_iter().zip(gateways).enumerate();
        reported
            .map(|(place, (asked, gateway))| {
                let failed = |_| Err("asking it failed".to_owned());
                let reported = asked.join().unwrap_or_else(failed);
                let before = before
                    .get(place)
                    .and_then(|seen| seen.reported.as_ref().ok());
                Seen {
                    name: gateway.name.clone(),
                    reported: reported.map(|figures| with_rates(figures, before)),
                }
            })
            .collect()
    })
}

fn with_rates(mut figures: Figures, before: Option<&Figures>) -> Figures {
    let Some(before) = before else {
        return figures;
    };
    let moment = |text: &str| text.parse::<jiff::Timestamp>().ok();
    let span = moment(&figures.at)
        .zip(moment(&before.at))
        .and_then(|(now, then)| u64::try_from(now.as_microsecond() - then.as_microsecond()).ok())
        .filter(|span| *span > 0);
    if let Some(span) = span {
        for limit in &mut figures.limits {
            let then = before.limits.iter().find(|then| then.is_of(limit));
            limit.per_second = then.map(|then| PerSecond::between(then, limit, span));
        }
    }
    figures
}

//! What a leased bucket costs: store calls a decision, under loads that need leases and loads that do not.

use std::sync::Arc;

use tollgate_limit::Micros;
use tollgate_store::simulated::Kind;

use crate::fleet::{Outcome, run_scene};
use crate::scene::{MILLISECOND, SECOND, Scene, Story, Time, Without, limit, terms};

/// A load on one bucket: requests a second of all gateways together, and the bucket's rate and burst.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub name: &'static str,
    pub requests: fn(usize) -> u64,
    pub rate: u64,
    pub burst: u64,
    /// From when it is counted, and until when: the bucket is at its limit by then, if it will be.
    pub counted: (Time, Time),
}

pub const LOADS: [Load; 5] = [
    Load {
        name: "hot, fits",
        requests: |_| 100_000,
        rate: 200_000,
        burst: 400_000,
        counted: (SECOND, 2 * SECOND),
    },
    Load {
        name: "half refused",
        requests: |_| 100_000,
        rate: 50_000,
        burst: 50_000,
        counted: (2 * SECOND, 3 * SECOND),
    },
    Load {
        name: "mostly refused",
        requests: |_| 10_000,
        rate: 100,
        burst: 200,
        counted: (2 * SECOND, 5 * SECOND),
    },
    Load {
        name: "cold",
        requests: |gateways| 50 * gateways as u64,
        rate: 200_000,
        burst: 400_000,
        counted: (SECOND, 5 * SECOND),
    },
    Load {
        name: "idle",
        requests: |_| 0,
        rate: 200_000,
        burst: 400_000,
        counted: (50 * MILLISECOND, 5 * SECOND),
    },
];

impl Load {
    pub fn scene(&self, gateways: usize) -> Scene {
        let numbers = terms(self.rate, self.burst, Micros::from_secs(1));
        let requests = (self.requests)(gateways);
        Scene {
            seed: 1,
            story: Story::Calm,
            kind: Kind::Redis,
            gateways,
            limits: vec![Arc::new(limit("total", &numbers, false, true))],
            keys: 1,
            lone: 0,
            requests_per_second: requests as f64,
            wave: 0,
            lasts: self.counted.1,
            from: self.counted.0,
            quiet: 0,
            cost_most: 1,
            // A round trip in a data centre.
            delay: (150, 350),
            tail: 0,
            loss: 0,
            leave: 0,
            faults: Vec::new(),
        }
    }

    pub fn run(&self, gateways: usize) -> Outcome {
        run_scene(self.scene(gateways), Without::Nothing, false)
    }
}

/// Prints the table for these numbers of gateways.
pub fn print(gateways: &[usize]) {
    let columns: String = gateways
        .iter()
        .map(|n| format!(" {n} gateways |"))
        .collect();
    println!("| load |{columns}\n|---|{}", "---|".repeat(gateways.len()));
    for load in LOADS {
        let cells: String = gateways
            .iter()
            .map(|n| format!(" {} |", cell(&load, *n)))
            .collect();
        println!("| {} |{cells}", load.name);
    }
    println!(
        "\nCalls a decision; in brackets what was granted, of what one exact bucket grants to the same requests. Idle: calls a second of one gateway."
    );
}

fn cell(load: &Load, gateways: usize) -> String {
    let Outcome {
        sums, violations, ..
    } = load.run(gateways);
    for violation in violations {
        println!("{}: {violation}", load.name);
    }
    if sums.decisions == 0 {
        let seconds = (load.counted.1 - load.counted.0) as f64 / SECOND as f64;
        return format!(
            "{:.1} a second",
            sums.messages as f64 / gateways as f64 / seconds
        );
    }
    let calls = sums.messages as f64 / sums.decisions as f64;
    format!(
        "{calls:.3} ({:.2})",
        sums.granted as f64 / sums.exact as f64
    )
}

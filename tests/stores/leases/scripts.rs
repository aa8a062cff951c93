//! Leases by Redis' scripts, called as the gateway calls them, against the pure core. (PostgreSQL's rows are decided by
//! the core itself.)

use tollgate_limit::lease::{Leased, Request, Return, Terms};
use tollgate_limit::{Algorithm, Change, Timestamp, TokenBucket};

use super::{SECOND, START};
use crate::limits::bucket;
use crate::servers::{Redis, available};

#[path = "../../../crates/store/src/redis/scripts.rs"]
mod sources;

/// The scripts, called as the gateway calls them.
pub(super) struct Scripts {
    connection: redis::aio::MultiplexedConnection,
    general: redis::Script,
    fast: redis::Script,
}

impl Scripts {
    pub(super) async fn of(server: &Redis) -> Self {
        let client = redis::Client::open(server.url()).unwrap();
        Self {
            connection: client.get_multiplexed_async_connection().await.unwrap(),
            general: redis::Script::new(sources::DRAW),
            fast: redis::Script::new(sources::DRAW_BUCKET),
        }
    }

    /// A return, a correction, a group of equal requests, a lease that is asked for; what was granted and leased, and the level before.
    pub(super) async fn general(
        &mut self,
        (bucket, terms): (&TokenBucket, Option<&Terms>),
        now: u64,
        back: Option<Return>,
        correction: Option<(i64, u64)>,
        group: Option<(u64, u64)>,
        asked: Option<Request>,
    ) -> (i64, u64, u64) {
        let quota = bucket.quota();
        let mut numbers: Vec<i64> = vec![7, now as i64, 5, 9, 0, 0, 1, 1, 0];
        numbers.extend([
            quota.n as i64,
            quota.p as i64,
            bucket.full(),
            0,
            0,
            bucket.floor(),
            quota.burst as i64,
        ]);
        numbers.extend(terms.map_or([0, 0], |terms| {
            [terms.most as i64, terms.counted().0 as i64]
        }));
        numbers.extend([0, 0]);
        numbers.push(i64::from(back.is_some()));
        numbers.extend(back.into_iter().flat_map(|back| {
            let until = back.until.as_micros() as i64;
            [0, until, back.units as i64, back.left as i64]
        }));
        numbers.push(i64::from(correction.is_some()));
        numbers.extend(
            correction
                .into_iter()
                .flat_map(|(what, units)| [0, what, units as i64, 0, 0]),
        );
        numbers.push(i64::from(group.is_some()));
        numbers.extend(
            group
                .into_iter()
                .flat_map(|(cost, count)| [count as i64, 1, 0, cost as i64, 1]),
        );
        numbers.push(i64::from(asked.is_some()));
        numbers.extend(
            asked
                .into_iter()
                .flat_map(|asked| [0, asked.units as i64, asked.needed as i64]),
        );
        let mut packed = vec![0xdd];
        packed.extend_from_slice(&(numbers.len() as u32).to_be_bytes());
        for number in numbers {
            packed.push(0xd3);
            packed.extend_from_slice(&number.to_be_bytes());
        }
        let reply: Vec<u8> = self
            .general
            .key("bucket")
            .arg(packed)
            .invoke_async(&mut self.connection)
            .await
            .unwrap();
        let numbers = unpacked(&reply);
        let state = usize::try_from(numbers[1]).unwrap();
        let level = if state == 0 {
            bucket.full()
        } else {
            numbers[2]
        };
        let rest = &numbers[2 + state..];
        let granted = if group.is_some() { rest[0] } else { 0 };
        let units = if asked.is_some() {
            rest[usize::from(group.is_some())]
        } else {
            0
        };
        (level, granted as u64, units as u64)
    }

    /// A group of equal requests of a gateway that knows of no leases.
    pub(super) async fn fast(
        &mut self,
        bucket: &TokenBucket,
        now: u64,
        cost: u64,
        count: u16,
    ) -> (i64, u64) {
        let quota = bucket.quota();
        let price = (cost * quota.p) as f64;
        let mut packed = Vec::new();
        for number in [now as f64, 9.0] {
            packed.extend_from_slice(&number.to_le_bytes());
        }
        packed.push(1);
        let (n, p, full) = (quota.n as f64, quota.p as f64, bucket.full() as f64);
        for number in [n, p, full, price, price] {
            packed.extend_from_slice(&number.to_le_bytes());
        }
        // The bucket's term; a group of so many requests with one claim: its term and its bucket.
        packed.push(0);
        packed.extend_from_slice(&count.to_le_bytes());
        packed.extend_from_slice(&[1, 0, 0, 0]);
        let reply: Vec<u8> = self
            .fast
            .key("bucket")
            .arg(packed)
            .invoke_async(&mut self.connection)
            .await
            .unwrap();
        let level = f64::from_le_bytes(reply[8..16].try_into().unwrap());
        (
            level as i64,
            u64::from(u16::from_le_bytes(reply[24..26].try_into().unwrap())),
        )
    }
}

fn unpacked(mut bytes: &[u8]) -> Vec<i64> {
    fn take<const N: usize>(bytes: &mut &[u8]) -> [u8; N] {
        let (head, tail) = bytes.split_first_chunk::<N>().unwrap();
        *bytes = tail;
        *head
    }
    let count = match take::<1>(&mut bytes)[0] {
        byte @ 0x90..=0x9f => usize::from(byte & 15),
        byte => panic!("{byte:x}"),
    };
    let number = |_| match take::<1>(&mut bytes)[0] {
        byte @ 0..=0x7f => i64::from(byte),
        byte @ 0xe0..=0xff => i64::from(byte as i8),
        0xcc => i64::from(take::<1>(&mut bytes)[0]),
        0xcd => i64::from(u16::from_be_bytes(take(&mut bytes))),
        0xce => i64::from(u32::from_be_bytes(take(&mut bytes))),
        0xcf => u64::from_be_bytes(take(&mut bytes)) as i64,
        0xd0 => i64::from(take::<1>(&mut bytes)[0] as i8),
        0xd1 => i64::from(i16::from_be_bytes(take(&mut bytes))),
        0xd2 => i64::from(i32::from_be_bytes(take(&mut bytes))),
        0xd3 => i64::from_be_bytes(take(&mut bytes)),
        byte => panic!("{byte:x}"),
    };
    (0..count).map(number).collect()
}

#[tokio::test]
async fn the_scripts_lease_as_the_core_does() {
    if !available("redis-server") {
        return;
    }
    let server = Redis::start();
    let mut scripts = Scripts::of(&server).await;
    let seed = fastrand::u64(..);
    println!("SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut most_slots = 0;
    for (amount, burst) in [
        (100, 100),
        (1_000, 200),
        (3_000, 1_000),
        (7, 40),
        (1_000_000, 2_000_000_000),
    ] {
        server.ask("FLUSHALL");
        let limit = bucket("l", 0, amount, SECOND, burst);
        let Algorithm::TokenBucket(bucket) = &limit.algorithm else {
            unreachable!("a token bucket")
        };
        let terms = Terms::of(&limit.algorithm).unwrap();
        let mut now = START;
        let mut core = Leased::full(bucket, Timestamp::from_micros(now));
        let mut leases: Vec<Return> = Vec::new();
        for step in 0..400_u64 {
            now += random.u64(..40_000);
            let at = Timestamp::from_micros(now);
            if random.u8(..) < 80 {
                let (cost, count) = (random.u64(1..=burst / 15), random.u16(1..4));
                core.refill(bucket, at);
                let level = core.level.level;
                let granted: u64 = (0..count)
                    .map(|_| u64::from(core.draw(bucket, cost, at)))
                    .sum();
                assert_eq!(
                    scripts.fast(bucket, now, cost, count).await,
                    (level, granted),
                    "fast, step {step}"
                );
                continue;
            }
            let some = |random: &mut fastrand::Rng| random.bool();
            // (One that is sent again may be taken, while its slot holds as much.)
            let back = (some(&mut random) && !leases.is_empty()).then(|| Return {
                left: random.u64(..burst / 10),
                ..leases[random.usize(..leases.len())]
            });
            let correction =
                some(&mut random).then(|| (random.i64(1..=2), random.u64(..burst / 12)));
            let group = some(&mut random).then(|| (random.u64(1..=burst / 15), random.u64(1..4)));
            let needed = if random.bool() {
                random.u64(..burst / 15)
            } else {
                0
            };
            let asked = some(&mut random).then(|| Request {
                units: random.u64(..burst / 5).max(needed),
                needed,
            });
            core.refill(bucket, at);
            if let Some(back) = back {
                core.give_back(bucket, back, at);
            }
            match correction {
                Some((1, more)) => core.settle(bucket, Change::Charge { more }, at),
                Some((_, units)) => core.settle(bucket, Change::Refund { units }, at),
                None => {}
            }
            let level = core.level.level;
            let granted = group.map_or(0, |(cost, count)| {
                (0..count)
                    .map(|_| u64::from(core.draw(bucket, cost, at)))
                    .sum()
            });
            let units = asked.map_or(0, |asked| core.lease(bucket, &terms, asked, at));
            let told = scripts
                .general((bucket, Some(&terms)), now, back, correction, group, asked)
                .await;
            assert_eq!(
                told,
                (level, granted, units),
                "step {step} of {amount}/s, burst {burst}"
            );
            let until = terms.until(core.level.at);
            leases.extend((units > 0).then_some(Return {
                until,
                units,
                left: 0,
            }));
            most_slots = most_slots.max(core.ledger.len());
        }
        // A row goes a second after nothing is left to be known of it.
        let left: i64 = server
            .ask("PTTL bucket")
            .trim()
            .trim_start_matches(':')
            .parse()
            .unwrap();
        assert!(left == -2 || left > 0, "{left}");
    }
    assert!(most_slots > 2, "{most_slots}");
}

/// A clock that is put back, with units leased: they count no longer than those that are leased then.
#[tokio::test]
async fn the_scripts_pull_leased_units_back_with_the_clock_as_the_core_does() {
    if !available("redis-server") {
        return;
    }
    let server = Redis::start();
    let mut scripts = Scripts::of(&server).await;
    let limit = bucket("l", 0, 100, SECOND, 1_000);
    let Algorithm::TokenBucket(bucket) = &limit.algorithm else {
        unreachable!("a token bucket")
    };
    let terms = Terms::of(&limit.algorithm).unwrap();
    let mut core = Leased::full(bucket, Timestamp::from_micros(START));
    let asked = Request {
        units: 20,
        needed: 0,
    };
    for now in [START, START - 60_000_000, START - 58_000_000] {
        let at = Timestamp::from_micros(now);
        core.pull(at);
        core.refill(bucket, at);
        let level = core.level.level;
        let units = core.lease(bucket, &terms, asked, at);
        let told = scripts
            .general((bucket, Some(&terms)), now, None, None, None, Some(asked))
            .await;
        assert_eq!(told, (level, 0, units), "at {now}");
    }
    assert_eq!(core.out(), 20, "the others have ended");
}

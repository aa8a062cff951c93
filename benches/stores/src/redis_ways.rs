//! Redis: Lua by EVALSHA, HMGET and HMSET, WATCH/MULTI/EXEC, and ours.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{Client, RedisResult, Script};
use tollgate_limit::{Claim, Limit};
use tollgate_store::redis::{self as redis_store, Address};
use tollgate_store::{RemoteStore, Store};

use crate::bench::{
    OVER_GRANT, PLENTY, SPAN, Tally, USERS, closed_loop, key, leased, limit, now, options, runtime,
    three, together,
};
use crate::servers::Redis;

/// The three classic ways, and ours.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Lua,
    /// Three limits: a call for each, one after the other.
    LuaEach,
    /// Three limits in one script.
    LuaAll,
    Racy,
    Watch,
    Ours,
    Leased,
}

const WAYS: [(Way, &str); 5] = [
    (Way::Lua, "Lua by EVALSHA"),
    (Way::Racy, "HMGET, HMSET, EXPIRE"),
    (Way::Watch, "WATCH, MULTI, EXEC (20 retries)"),
    (Way::Ours, "Tollgate"),
    (Way::Leased, "Tollgate, leased"),
];

const LUA: &str = "
local state = redis.call('HMGET', KEYS[1], 'tokens', 'ts')
local rate, burst, now = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local tokens, ts = tonumber(state[1]) or burst, tonumber(state[2]) or now
tokens = math.min(burst, tokens + math.max(0, now - ts) * rate)
local allowed = 0
if tokens >= 1 then tokens = tokens - 1 allowed = 1 end
redis.call('HMSET', KEYS[1], 'tokens', string.format('%.17g', tokens), 'ts', ARGV[3])
redis.call('EXPIRE', KEYS[1], 3600)
return allowed";

/// The ways for requests with three limits.
const SEVERAL: [(Way, &str); 3] = [
    (Way::LuaEach, "Lua by EVALSHA, a call for each limit"),
    (Way::LuaAll, "Lua by EVALSHA, one script for the three"),
    (Way::Ours, "Tollgate"),
];

/// [`LUA`] for several buckets: all or none.
const LUA_ALL: &str = "
local rate, now, levels, allowed = tonumber(ARGV[1]), tonumber(ARGV[2]), {}, 1
for i, key in ipairs(KEYS) do
  local state = redis.call('HMGET', key, 'tokens', 'ts')
  local burst = tonumber(ARGV[2 + i])
  local tokens, ts = tonumber(state[1]) or burst, tonumber(state[2]) or now
  levels[i] = math.min(burst, tokens + math.max(0, now - ts) * rate)
  if levels[i] < 1 then allowed = 0 end
end
for i, key in ipairs(KEYS) do
  redis.call('HMSET', key, 'tokens', string.format('%.17g', levels[i] - allowed), 'ts', ARGV[2])
  redis.call('EXPIRE', key, 3600)
end
return allowed";

/// What a task needs for its way.
#[derive(Clone)]
struct Tools {
    connection: MultiplexedConnection,
    script: Arc<Script>,
    store: Arc<RemoteStore>,
    limits: Vec<Arc<Limit>>,
    rate: f64,
    burst: f64,
    tally: Arc<Tally>,
}

impl Tools {
    async fn decide(&mut self, way: Way, key: &str) -> RedisResult<bool> {
        let granted = match way {
            Way::Lua => {
                Tally::count(&self.tally.calls, 1);
                let mut call = self.script.key(key);
                call.arg(self.rate).arg(self.burst).arg(now());
                call.invoke_async::<i64>(&mut self.connection).await? == 1
            }
            Way::LuaEach => {
                let mut granted = true;
                for place in 1..=3 {
                    Tally::count(&self.tally.calls, 1);
                    let mut call = self.script.key(format!("{key}:{place}"));
                    call.arg(self.rate)
                        .arg(self.burst * f64::from(place))
                        .arg(now());
                    granted &= call.invoke_async::<i64>(&mut self.connection).await? == 1;
                }
                granted
            }
            Way::LuaAll => {
                Tally::count(&self.tally.calls, 1);
                let mut call = self.script.prepare_invoke();
                call.arg(self.rate).arg(now());
                for place in 1..=3 {
                    call.key(format!("{key}:{place}"))
                        .arg(self.burst * f64::from(place));
                }
                call.invoke_async::<i64>(&mut self.connection).await? == 1
            }
            Way::Racy => {
                Tally::count(&self.tally.calls, 3);
                let (tokens, granted, moment) = self.look(key).await?;
                let mut write = redis::cmd("HMSET");
                write
                    .arg(key)
                    .arg("tokens")
                    .arg(tokens)
                    .arg("ts")
                    .arg(moment);
                let () = write.query_async(&mut self.connection).await?;
                let () = redis::cmd("EXPIRE")
                    .arg(key)
                    .arg(3600)
                    .query_async(&mut self.connection)
                    .await?;
                granted
            }
            Way::Watch => {
                let mut attempt = 0;
                loop {
                    Tally::count(&self.tally.calls, 6);
                    let () = redis::cmd("WATCH")
                        .arg(key)
                        .query_async(&mut self.connection)
                        .await?;
                    let (tokens, granted, moment) = self.look(key).await?;
                    let mut change = redis::pipe();
                    change
                        .atomic()
                        .cmd("HMSET")
                        .arg(key)
                        .arg("tokens")
                        .arg(tokens)
                        .arg("ts")
                        .arg(moment)
                        .ignore();
                    change.cmd("EXPIRE").arg(key).arg(3600);
                    let done: Option<(i64,)> = change.query_async(&mut self.connection).await?;
                    attempt += 1;
                    if done.is_some() {
                        break granted;
                    }
                    if attempt == 20 {
                        Tally::count(&self.tally.gave_up, 1);
                        break false;
                    }
                }
            }
            Way::Ours | Way::Leased => {
                let claim = |limit| Claim::new(limit, key.as_bytes(), 1);
                let drawn = match self.limits.as_slice() {
                    [a, b, c] => self.store.draw(&[claim(a), claim(b), claim(c)]).await,
                    limits => self.store.draw(&[claim(&limits[0])]).await,
                };
                match drawn {
                    Ok(draw) => draw.granted,
                    Err(_) => {
                        Tally::count(&self.tally.errors, 1);
                        Tally::count(&self.tally.failed, 1);
                        false
                    }
                }
            }
        };
        Tally::count(&self.tally.decisions, 1);
        Tally::count(&self.tally.granted, u64::from(granted));
        Ok(granted)
    }

    async fn look(&mut self, key: &str) -> RedisResult<(f64, bool, f64)> {
        let read = redis::cmd("HMGET")
            .arg(key)
            .arg("tokens")
            .arg("ts")
            .query_async(&mut self.connection)
            .await;
        let (tokens, ts): (Option<f64>, Option<f64>) = read?;
        let moment = now();
        let elapsed = (moment - ts.unwrap_or(moment)).max(0.0);
        let tokens = (tokens.unwrap_or(self.burst) + elapsed * self.rate).min(self.burst);
        Ok(if tokens >= 1.0 {
            (tokens - 1.0, true, moment)
        } else {
            (tokens, false, moment)
        })
    }
}

/// One run: nanoseconds per decision, calls per decision, server CPU microseconds per decision, granted, gave up; from when
/// to when, in seconds of the system's clock.
struct Run {
    nanos: f64,
    calls: f64,
    cpu: f64,
    tally: Arc<Tally>,
    span: (f64, f64),
}

/// So many decisions of one task, one after the other, on a hot key; what they cost the server at `url`, or one started here.
pub fn count(name: &str, decisions: u64, url: Option<String>) {
    let way = WAYS
        .iter()
        .find(|(_, known)| *known == name)
        .map_or(Way::Ours, |(way, _)| *way);
    let server = url.is_none().then(Redis::start);
    let url = url.unwrap_or_else(|| server.as_ref().map(Redis::url).unwrap_or_default());
    let limits = vec![limit(PLENTY, PLENTY)];
    runtime().block_on(async {
        let client = Client::open(url.as_str()).expect("an address");
        let mut tools = tools(&client, &url, way, (PLENTY, PLENTY, limits)).await;
        warm(&tools, way).await;
        tools.tally = Arc::default();
        let (before, calls) = (spent(&client).await, tools.store.counters().calls.load(Ordering::Relaxed));
        for _ in 0..decisions {
            tools.decide(way, "hot").await.expect("an answer");
        }
        let (after, each) = (spent(&client).await, decisions as f64);
        let calls = (tools.store.counters().calls.load(Ordering::Relaxed) - calls).max(Tally::read(&tools.tally.calls));
        let [cpu, script, bytes_in, bytes_out] = std::array::from_fn(|place| (after[place] - before[place]) / each);
        println!(
            "{name}: {decisions} decisions, {} granted; each: {:.3} calls, {cpu:.2} us of server CPU, {script:.2} us in scripts, \
             {bytes_in:.0} bytes to the server, {bytes_out:.0} from it",
            Tally::read(&tools.tally.granted),
            calls as f64 / each,
        );
    });
}

/// Microseconds of CPU the server has used, those in EVALSHA, bytes it has read and written.
async fn spent(client: &Client) -> [f64; 4] {
    let mut connection = client
        .get_multiplexed_async_connection()
        .await
        .expect("a connection");
    let info: String = redis::cmd("INFO")
        .arg("everything")
        .query_async(&mut connection)
        .await
        .expect("INFO");
    let field = |name: &str| -> f64 {
        let line = info
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .unwrap_or("0");
        line.split(',')
            .next()
            .and_then(|number| number.trim().parse().ok())
            .unwrap_or(0.0)
    };
    let script = info
        .lines()
        .find_map(|line| line.strip_prefix("cmdstat_evalsha:")?.split("usec=").nth(1));
    let script = script
        .and_then(|rest| rest.split(',').next()?.parse().ok())
        .unwrap_or(0.0);
    let cpu = (field("used_cpu_user:") + field("used_cpu_sys:")) * 1e6;
    [
        cpu,
        script,
        field("total_net_input_bytes:"),
        field("total_net_output_bytes:"),
    ]
}

async fn run(
    url: &str,
    way: Way,
    per_user: bool,
    tasks: usize,
    amount: u64,
    burst: u64,
    span: Duration,
) -> Run {
    let limits = vec![if way == Way::Leased {
        leased(amount, burst)
    } else {
        limit(amount, burst)
    }];
    run_on(url, way, per_user, tasks, (amount, burst, limits), span).await
}

async fn run_on(
    url: &str,
    way: Way,
    per_user: bool,
    tasks: usize,
    (amount, burst, limits): (u64, u64, Vec<Arc<Limit>>),
    span: Duration,
) -> Run {
    let client = Client::open(url).expect("an address");
    let tools = tools(&client, url, way, (amount, burst, limits)).await;
    let (tally, store) = (tools.tally.clone(), tools.store.clone());
    // WATCH belongs to a connection: each task needs its own. The others share one, as their clients do.
    let mut each = Vec::new();
    for _ in 0..tasks {
        let mut own = tools.clone();
        if way == Way::Watch {
            own.connection = client
                .get_multiplexed_async_connection()
                .await
                .expect("a connection");
        }
        each.push(own);
    }
    warm(&tools, way).await;
    let users = if per_user { USERS } else { 1 };
    let before = (
        cpu(&client).await,
        store.counters().calls.load(Ordering::Relaxed),
    );
    let began = now();
    let nanos = closed_loop(tasks, span, &tally, |task, end| {
        let mut tools = each[task].clone();
        async move {
            let mut turn = 0;
            while Instant::now() < end {
                turn += 1;
                if tools.decide(way, &key(users, task, turn)).await.is_err() {
                    Tally::count(&tools.tally.errors, 1);
                }
            }
        }
    })
    .await;
    let ended = now();
    let decisions = Tally::read(&tally.decisions).max(1) as f64;
    let calls = match way {
        Way::Ours | Way::Leased => store.counters().calls.load(Ordering::Relaxed) - before.1,
        _ => Tally::read(&tally.calls),
    };
    let cpu = (cpu(&client).await - before.0) * 1e6 / decisions;
    Run {
        nanos,
        calls: calls as f64 / decisions,
        cpu,
        tally,
        span: (began, ended),
    }
}

/// What all ways need.
async fn tools(
    client: &Client,
    url: &str,
    way: Way,
    (amount, burst, limits): (u64, u64, Vec<Arc<Limit>>),
) -> Tools {
    let shared = client
        .get_multiplexed_async_connection()
        .await
        .expect("a connection");
    let address = Address::parse(url).expect("an address");
    let store = Arc::new(redis_store::start(address, options()).expect("a thread"));
    assert!(store.ready(Duration::from_secs(5)).await, "connected");
    Tools {
        connection: shared,
        script: Arc::new(Script::new(if way == Way::LuaAll { LUA_ALL } else { LUA })),
        store,
        limits,
        rate: amount as f64,
        burst: burst as f64,
        tally: Arc::default(),
    }
}

/// A gateway has served before: the connections stand.
async fn warm(tools: &Tools, way: Way) {
    if !matches!(way, Way::Ours | Way::Leased) {
        return;
    }
    let mut own = tools.clone();
    own.tally = Arc::default();
    for _ in 0..50 {
        let _ = own.decide(way, "before").await;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Seconds of CPU the server has used.
async fn cpu(client: &Client) -> f64 {
    let mut connection = client
        .get_multiplexed_async_connection()
        .await
        .expect("a connection");
    let info: String = redis::cmd("INFO")
        .arg("cpu")
        .query_async(&mut connection)
        .await
        .expect("INFO");
    let field = |name: &str| {
        let line = info
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .unwrap_or("0");
        line.trim().parse::<f64>().unwrap_or(0.0)
    };
    field("used_cpu_user:") + field("used_cpu_sys:")
}

/// ns/op, calls and CPU, at several concurrencies.
pub fn compare(only: Option<usize>, way: &str) {
    let ways = || {
        WAYS.into_iter()
            .filter(|(_, name)| way.is_empty() || way == *name)
    };
    let server = Redis::start();
    println!(
        "\n## Redis, everything allowed (ns of wall time, calls, us of server CPU; each per decision)\n"
    );
    println!(
        "| way | workload | tasks | ns/op | redis_calls/req | Redis CPU us/req |\n|---|---|---|---|---|---|"
    );
    for per_user in [false, true] {
        for tasks in [1, 16, 64, 256]
            .into_iter()
            .filter(|tasks| only.is_none_or(|only| *tasks == only))
        {
            for (way, name) in ways() {
                let run = runtime().block_on(run(
                    &server.url(),
                    way,
                    per_user,
                    tasks,
                    PLENTY,
                    PLENTY,
                    SPAN,
                ));
                run.tally.assert_all_allowed(name);
                let workload = if per_user { "per_user" } else { "hot_key" };
                println!(
                    "| {name} | {workload} | {tasks} | {:.0} | {:.4} | {:.2} |",
                    run.nanos, run.calls, run.cpu
                );
                server.ask("FLUSHALL");
            }
        }
    }
    println!("\n## Redis, three limits a request, everything allowed\n");
    println!(
        "| way | workload | tasks | ns/op | redis_calls/req | Redis CPU us/req |\n|---|---|---|---|---|---|"
    );
    for per_user in [false, true] {
        for tasks in [1, 64, 256]
            .into_iter()
            .filter(|tasks| only.is_none_or(|only| *tasks == only))
        {
            for (way, name) in SEVERAL
                .into_iter()
                .filter(|(_, name)| way.is_empty() || way == *name)
            {
                let limits = (PLENTY, PLENTY, three(PLENTY, PLENTY));
                let run =
                    runtime().block_on(run_on(&server.url(), way, per_user, tasks, limits, SPAN));
                run.tally.assert_all_allowed(name);
                let workload = if per_user { "per_user" } else { "hot_key" };
                println!(
                    "| {name} | {workload} | {tasks} | {:.0} | {:.4} | {:.2} |",
                    run.nanos, run.calls, run.cpu
                );
                server.ask("FLUSHALL");
            }
        }
    }
}

/// Burst 10, 10 a second, 64 tasks a process, three seconds, one key: at most 40, and what comes back while the processes
/// start one after the other. A bucket that is leased must be larger: burst 100, 100 a second, at most 400 and that.
pub fn over_grant(way: &str) {
    let server = Redis::start();
    println!(
        "\n## Over-grant, Redis: burst 10, 10/s, 64 tasks a process, 3 s, one key; at most 40 may be granted, and what comes back while processes start apart (leased: ten times all of it)\n"
    );
    println!(
        "| way | processes | granted | at most | refused by conflict alone | redis_calls/req |\n|---|---|---|---|---|---|"
    );
    for (way, name) in WAYS
        .into_iter()
        .filter(|(_, name)| way.is_empty() || way == *name)
    {
        for processes in [1, 2, 3, 4] {
            let ([granted, gave_up, calls, decisions], span) =
                together(&["one-gateway", &server.url(), name], processes);
            let rate = if way == Way::Leased { 100.0 } else { 10.0 };
            let most = (rate + rate * span).floor();
            println!(
                "| {name} | {processes} | {granted:.0} | {most:.0} | {gave_up:.0} of {decisions:.0} | {:.6} |",
                calls / decisions
            );
            assert!(
                !matches!(way, Way::Ours | Way::Leased) || granted <= most,
                "ours over-granted"
            );
            server.ask("FLUSHALL");
        }
    }
}

/// A load on one leased bucket: its name, the bucket's rate and burst, and the requests a second of each process.
const LOADS: [(&str, [u64; 3]); 2] = [
    ("hot, fits", [200_000, 400_000, 100]),
    ("mostly refused", [100, 200, 100]),
];

/// So many gateways, each a process with a caller that asks at a steady pace: calls to Redis for a decision by its own count,
/// with those of heartbeats and connections, and what was granted beside the most that may be.
pub fn many(processes: usize) {
    println!("\n## {processes} processes on one leased bucket, Redis\n");
    println!("| load | decisions | calls a decision | granted | at most |\n|---|---|---|---|---|");
    for (name, numbers) in LOADS {
        let server = Redis::start();
        let url = server.url();
        let numbers = numbers.map(|number| number.to_string());
        let arguments = [
            &["paced-gateway", &url][..],
            &numbers.each_ref().map(String::as_str),
        ]
        .concat();
        let ([granted, _, _, decisions], span) = together(&arguments, processes);
        let stats = server.ask("INFO commandstats");
        let scripts = stats
            .lines()
            .find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
        let calls = scripts.and_then(|rest| rest.split(',').next()?.parse::<f64>().ok());
        let calls = calls.expect("gateways call scripts") / decisions;
        let [rate, burst, _] = numbers.map(|number| number.parse::<f64>().expect("a number"));
        let most = (burst + rate * span).floor();
        println!("| {name} | {decisions:.0} | {calls:.3} | {granted:.0} | {most:.0} |");
        assert!(granted <= most, "ours over-granted");
    }
}

/// One process of [`many`], with the rate and the burst of the bucket and its requests a second: prints what [`one_gateway`]
/// prints.
pub fn paced_gateway(url: &str, [amount, burst, per_second]: [u64; 3]) {
    runtime().block_on(async {
        let client = Client::open(url).expect("an address");
        let limits = vec![leased(amount, burst)];
        let mut tools = tools(&client, url, Way::Leased, (amount, burst, limits)).await;
        let mut pace = tokio::time::interval(Duration::from_micros(1_000_000 / per_second));
        let (began, start) = (now(), Instant::now());
        while start.elapsed() < PACED {
            pace.tick().await;
            tools.decide(Way::Leased, "hot").await.expect("an answer");
        }
        let [granted, decisions] = [&tools.tally.granted, &tools.tally.decisions].map(Tally::read);
        println!("{granted} 0 0 {decisions} {began} {}", now());
    });
}

/// How long each process of [`many`] asks.
const PACED: Duration = Duration::from_secs(10);

/// One process of the over-grant test: prints granted, gave up, calls, decisions, from when and to when it asked.
pub fn one_gateway(url: &str, name: &str) {
    let way = WAYS
        .iter()
        .find(|(_, known)| *known == name)
        .map_or(Way::Ours, |(way, _)| *way);
    let amount = if way == Way::Leased { 100 } else { 10 };
    let run = runtime().block_on(run(url, way, false, 64, amount, amount, OVER_GRANT));
    let decisions = Tally::read(&run.tally.decisions);
    let calls = run.calls * decisions as f64;
    let (began, ended) = run.span;
    let (granted, gave_up) = (
        Tally::read(&run.tally.granted),
        Tally::read(&run.tally.gave_up),
    );
    println!("{granted} {gave_up} {calls} {decisions} {began} {ended}");
}

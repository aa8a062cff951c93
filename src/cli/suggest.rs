//! `tollgate suggest`: suggests the numbers of a limit, from a log.

use std::path::Path;

use tollgate_config::{Config, Unset};
use tollgate_limit::{Kind, Mode};
use tollgate_policy::Policy;
use tollgate_replay::suggest::{Ask, Choice, Rate, suggest as work_out};
use tollgate_replay::{Traffic, edit, share};
use tollgate_store::clock::Clock;

use super::args::{ChoiceArg, Suggest, SuggestFormat};
use super::replay::{options, traffic};
use super::{Ended, Stop};
use super::{GOOD, load, print_out, replace_file, wrong_use};

pub(super) fn suggest(args: &Suggest) -> Ended {
    let options = options(&args.log.reading).map_err(Stop::Misuse)?;
    let rates = args.rates.iter().map(|text| rate(text));
    let rates: Vec<Rate> = rates.collect::<Result<_, _>>().map_err(Stop::Misuse)?;
    let refuse = share(args.refuse.trim()).filter(|share| *share <= 1_000_000);
    let wrong = || Stop::Misuse(format!("--refuse: `{}` is no share: 0.1%", args.refuse));
    let refuse = refuse.ok_or_else(wrong)?;
    let config = args.config.as_deref().map(load::load_file).transpose()?;
    let found = match (&config, &args.per) {
        (Some(config), None) => in_file(config, args.limit.as_deref()),
        (_, per) => by_words(per.as_deref().unwrap_or("address")),
    };
    let Subject {
        made,
        rule,
        name,
        per,
    } = found.map_err(Stop::Misuse)?;
    let policy: &Policy = match (&made, &config) {
        (Some(made), _) | (None, Some(made)) => &made.policy,
        (None, None) => return Ok(wrong_use()),
    };
    let mut traffic = traffic(&args.log.logs, &options, &[policy])?;
    let today = made.is_none().then(|| today(&mut traffic, policy, rule));
    let ask = Ask {
        rates,
        refuse,
        rule,
        today,
    };
    let suggestion = work_out(&traffic, &per, ask)?;
    let survey = &traffic.survey;
    let wanted = match args.choice {
        ChoiceArg::Tight => "tight",
        ChoiceArg::Balanced => "balanced",
        ChoiceArg::Loose => "loose",
    };
    let choice = suggestion.choice(wanted);
    let choice = choice.ok_or_else(|| format!("the log has no numbers for `{wanted}`"))?;
    let evidence = suggestion.evidence(survey);
    let toml = edit::table(&name, &per, choice, &evidence);
    if args.format != SuggestFormat::Json {
        for warning in &survey.warnings {
            tell!("warning: {warning}");
        }
    }
    let printed = print_out(&match args.format {
        SuggestFormat::Text => suggestion.text(survey, &toml),
        SuggestFormat::Json => format!("{:#}", suggestion.document(survey, &toml)),
        SuggestFormat::Toml => toml,
    });
    if let Some(path) = &args.html {
        replace_file(
            path,
            &tollgate_replay::html::suggestion(survey, &suggestion),
        )?;
    }
    let Some(path) = args.config.as_ref().filter(|_| args.write) else {
        return Ok(printed);
    };
    let file = path.display();
    let target =
        write(path, &name, &per, choice, &evidence).map_err(|what| format!("`{file}`: {what}"))?;
    tell!(
        "tollgate suggest: wrote `{file}`: its limit `{target}` is in shadow mode, where it counts and never refuses"
    );
    Ok(GOOD)
}

struct Subject {
    /// The policy from the options, if no limit of a file is meant.
    made: Option<Config>,
    rule: usize,
    name: String,
    per: String,
}

/// The file's limit of this name, or its first limit with a rate.
fn in_file(config: &Config, name: Option<&str>) -> Result<Subject, String> {
    let rules = &config.policy.rules;
    let rule = match name {
        Some(name) => rules.iter().position(|rule| &*rule.name == name),
        None => rules.iter().position(|rule| {
            rule.live.mode != Mode::Off && rule.live.algorithm.kind() != Kind::InFlight
        }),
    };
    let Some(rule) = rule else {
        return match name {
            Some(name) => Err(format!("the file has no limit `{name}`")),
            None => by_words("address"),
        };
    };
    let per = match rules[rule].scope.names(&config.policy).as_slice() {
        [] => "everyone".to_owned(),
        parts => parts.join(" + "),
    };
    Ok(Subject {
        made: None,
        rule,
        name: rules[rule].name.to_string(),
        per,
    })
}

/// One limit on all routes.
fn by_words(per: &str) -> Result<Subject, String> {
    let text = tollgate_config::quick("builtin:echo", "1/second", per);
    let parsed = tollgate_config::parse(
        &text,
        tollgate_config::COMMAND_LINE,
        &|_| None,
        Clock::system().now(),
    );
    let config = parsed.map_err(|error| format!("--per: {}", error.words().join("; ")))?;
    Ok(Subject {
        made: Some(config),
        rule: 0,
        name: "per_caller".to_owned(),
        per: per.to_owned(),
    })
}

/// The effect of the file's numbers on the log.
pub(super) fn today(traffic: &mut Traffic<'_>, policy: &Policy, rule: usize) -> Choice {
    let outcome = traffic.replay();
    let algorithm = &policy.rules[rule].live.algorithm;
    let quota = algorithm.quota();
    let minute = 60_000_000_u128;
    let counts = outcome.limits.get(rule).map(|limit| limit.counts);
    let counts = counts.unwrap_or_default();
    Choice {
        rate: quota.map_or_else(String::new, |quota| {
            format!(
                "{}/{}",
                quota.amount,
                tollgate_limit::words::period(quota.period).replace(' ', "")
            )
        }),
        burst: quota.map_or(0, |quota| quota.burst),
        per_minute: quota.and_then(|quota| {
            let units = u128::from(quota.amount) * minute / u128::from(quota.period.0.max(1));
            u64::try_from(units + u128::from(quota.burst)).ok()
        }),
        keys_refused: counts.keys_refused,
        requests_refused: counts.refused,
        bar: 0,
    }
}

/// Writes the limit into the file, which must still be valid with it; returns the limit's name there.
fn write(
    path: &Path,
    name: &str,
    per: &str,
    choice: &Choice,
    evidence: &[String],
) -> Result<String, String> {
    let text = tollgate_config::read_text(path).map_err(|error| error.to_string())?;
    let (changed, target) = edit::written(&text, name, per, choice, evidence)?;
    load::loader()
        .unset(Unset::Assumed)
        .text(&changed, &path.display().to_string())
        .map_err(|error| format!("it is left as it is, since it would not be good:\n{error}"))?;
    super::write_file(path, &changed).map_err(|error| error.to_string())?;
    Ok(target)
}

fn rate(text: &str) -> Result<Rate, String> {
    let rate = tollgate_config::rate(text.trim()).map_err(|what| format!("--rates: {what}"))?;
    Ok(Rate {
        text: text.trim().to_owned(),
        amount: rate.amount,
        period: rate.period.0,
    })
}

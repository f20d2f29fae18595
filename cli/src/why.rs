//! Why a block is where it is: what is asked on the command line, and the answer in words.
//!
//! Owns the words alone; the reasons are the engine's. Used by `simulate --explain` and
//! `status --why`.

use std::fmt::Write;
use std::str::FromStr;

use oversubd::control::why::{BlockView, DecisionView, StandingView};

/// An address in a program's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Address(pub u64);

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.strip_prefix("0x").unwrap_or(text);
        u64::from_str_radix(digits, 16)
            .map(Self)
            .map_err(|_| format!("`{text}` is no address; write for example 0x7f2a40000000"))
    }
}

/// A block of a trace at a launch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockAtLaunch {
    /// Which block.
    pub block: Named,
    /// Number of the launch, from 0.
    pub launch: u32,
}

/// How a block of a trace is named.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Named {
    /// By an address in it.
    Address(u64),
    /// By its number, from 0, in the order in which the program obtained memory.
    Number(u32),
}

impl FromStr for BlockAtLaunch {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "`{text}` is not BLOCK@LAUNCH; write for example 0x7f2a40000000@1200 (an address), or 17@1200 (the block's number)"
            )
        };
        let (block, launch) = text.split_once('@').ok_or_else(wrong)?;
        let launch = launch.parse().map_err(|_| wrong())?;
        let block = if block.starts_with("0x") {
            block.parse::<Address>().map(|at| Named::Address(at.0))
        } else {
            block.parse().map(Named::Number).map_err(|_| wrong())
        };
        Ok(Self {
            block: block.map_err(|_| wrong())?,
            launch,
        })
    }
}

/// A block's state and standing, without its decisions.
pub fn state(block: &BlockView) -> String {
    let place = match block.place.as_str() {
        "nowhere" => "without content",
        "host" => "on the host",
        "device" => "on the device",
        "incoming" => "on its way to the device",
        "outgoing" => "on its way to the host",
        other => other,
    };
    let dead = if block.dead {
        ", its content is dead"
    } else {
        ""
    };
    let next = match block.next_use {
        Some(launch) => {
            let how = if block.queued {
                "queued"
            } else {
                "foretold by the learned cycle"
            };
            let ahead = launch.saturating_sub(block.launch);
            format!("used next by launch {launch}, {ahead} ahead ({how})")
        }
        None => "no launch is known to use it".to_owned(),
    };
    format!("  {place}{dead}; {next}\n  {}\n", standing(&block.standing))
}

fn standing(standing: &StandingView) -> String {
    let stop = standing.stop.as_ref();
    let why = stop.map_or("", |said| said.text.as_str());
    match (standing.word.as_str(), standing.before) {
        ("kept", Some(0)) => format!("kept, though it would be the next to go: {why}"),
        ("kept", Some(before)) => {
            let use_of = match standing.victim_use {
                Some(launch) => format!("is needed by launch {launch}"),
                None => "is not known to be needed".to_owned(),
            };
            format!(
                "kept: {before} blocks go before it; the first of them, {:#x}, {use_of}, and stays for now: {why}",
                standing.victim.unwrap_or(0)
            )
        }
        ("waits", Some(0)) => format!("is fetched next; waits: {why}"),
        ("waits", Some(before)) => {
            format!("is to be fetched; {before} blocks come before it, and the first waits: {why}")
        }
        ("dead-kept", _) => {
            "kept without need: its frame is taken once it is wanted sooner than the block is born again"
                .to_owned()
        }
        ("dying", _) => {
            "left where it is: it was given back, and its frame is free before it could be moved out"
                .to_owned()
        }
        ("unborn", _) => "takes no frame until it is born".to_owned(),
        ("stale", _) => "its dead content on the host is about to be dropped".to_owned(),
        ("under-way", _) => "a command on it is under way".to_owned(),
        ("left-alone", _) => "left alone until it is used again: a command on it had no effect".to_owned(),
        ("no-use-known", _) => "left where it is until a launch is known to use it".to_owned(),
        (_, _) => "the policy does not say more".to_owned(),
    }
}

/// Decisions, one a line. `addresses`: they are not all of one block.
pub fn decisions(decisions: &[DecisionView], addresses: bool) -> String {
    let mut text = String::new();
    for decision in decisions {
        // Writing into a String cannot fail.
        let _ = write!(
            text,
            "    launch {:>7} {:>12.3} ms  ",
            decision.launch,
            decision.at_us as f64 / 1e3
        );
        if addresses {
            let _ = write!(text, "{:#x}  ", decision.address);
        }
        text.push_str(&what(decision));
        text.push('\n');
    }
    text
}

fn what(decision: &DecisionView) -> String {
    let Some(reason) = &decision.reason else {
        return match decision.what.as_str() {
            "useful" => "came in time: it was there when it was used",
            "late" => "came too late: it was still under way when it was used",
            "wasted" => "came in vain: it left again before it was used",
            "refused" => "refused: the command had no effect",
            other => other,
        }
        .to_owned();
    };
    let verb = match decision.what.as_str() {
        "prefetch" => "fetched",
        "populate" => "given a frame",
        "evict" => "evicted",
        "discard" => "dropped",
        other => other,
    };
    let mut text = format!("{verb}: {}", reason.text);
    let next = match decision.next_use {
        Some(launch) => format!("next use: launch {launch}"),
        None => "no next use known".to_owned(),
    };
    let rival = decision
        .rival_use
        .map(|launch| format!("for launch {launch}"));
    let cost = (decision.cost_us > 0).then(|| format!("{} us of the link", decision.cost_us));
    let cycle = decision
        .cycle_launches
        .map(|launches| format!("cycle of {launches}"));
    let breaker = match decision.breaker {
        oversubd::control::Breaker::Closed => None,
        oversubd::control::Breaker::HalfOpen => Some("breaker half open".to_owned()),
        oversubd::control::Breaker::Open => Some("breaker open".to_owned()),
    };
    let more = [Some(next), rival, cost, cycle, breaker];
    let more: Vec<String> = more.into_iter().flatten().collect();
    let _ = write!(text, " ({})", more.join(", "));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_named_by_an_address_or_by_its_number() {
        let at = |text: &str| text.parse::<BlockAtLaunch>();
        let block = Named::Address(0x7f00_0000_0000);
        assert_eq!(
            at("0x7f0000000000@12"),
            Ok(BlockAtLaunch { block, launch: 12 })
        );
        let block = Named::Number(3);
        assert_eq!(at("3@0"), Ok(BlockAtLaunch { block, launch: 0 }));
        for wrong in ["3", "@3", "3@", "x@3", "0xzz@3", "3@-1"] {
            let error = at(wrong).unwrap_err();
            assert!(
                error.contains(wrong) && error.contains("for example"),
                "{error}"
            );
        }
        assert_eq!("0xff".parse(), Ok(Address(255)));
        assert!("0x".parse::<Address>().is_err());
    }
}

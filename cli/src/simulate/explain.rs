//! `oversub simulate --explain BLOCK@LAUNCH`: why a block is where it is when a launch begins.

use anyhow::{Context, Result, bail};
use oversub_sim::explain::{Ask, Explanation};
use oversub_sim::run;
use oversub_sim::trace::{Block, Launch, Program};
use oversub_sim::units::BLOCK_BYTES;
use oversubd::control::why::{BlockView, DecisionView};
use serde::Serialize;

use super::grid::{self, Grid, machine_with};
use crate::size::Size;
use crate::usage::usage;
use crate::why::{self, BlockAtLaunch, Named};

/// The answer as `--json` prints it.
#[derive(Debug, Serialize)]
struct Answer {
    trace: String,
    policy: &'static str,
    memory_bytes: u64,
    /// The block's number in the trace.
    block_number: u32,
    /// The launch asked for, and its kernel.
    launch: u32,
    kernel: String,
    /// When it began.
    at_us: f64,
    /// The block then; its decisions are those before.
    block: BlockView,
    /// Decisions on it from then on.
    after: Vec<DecisionView>,
}

/// Runs the only run of `grid` and tells why.
///
/// # Errors
/// Where there is no such block or launch, or the policy is no engine.
pub(super) fn print(grid: &Grid, what: BlockAtLaunch, json: bool) -> Result<()> {
    let ([path], [entry], [memory]) = (&grid.traces[..], &grid.policies[..], &grid.memories[..])
    else {
        return usage("--explain is for one run: one trace, one policy, one size of memory");
    };
    let program = grid::read(path, &grid.variant)?;
    let machine = machine_with(&grid.machine, memory.bytes(&program), &program)?;
    let ask = ask(&program, what)?;
    let options = run::Options {
        explain: Some(ask),
        ..grid.options
    };
    let outcome = run::run(&program, &machine, entry, options)
        .with_context(|| format!("{} under {}", program.name(), entry.name))?;
    if outcome.engine.is_none() {
        return usage(format!(
            "--explain: {} is no engine and cannot say why; use foresight or deepum",
            entry.name
        ));
    }
    let Some(Explanation { at, why, after }) = outcome.explanation else {
        return usage(format!(
            "--explain: in {}, no memory lies at {:#x} when launch {} begins",
            program.name(),
            ask.address,
            what.launch
        ));
    };
    let Some(block) = program.block_at(ask.address) else {
        bail!("the trace has lost the block at {:#x}", ask.address);
    };
    let answer = Answer {
        trace: program.name().to_owned(),
        policy: entry.name,
        memory_bytes: machine.memory_bytes,
        block_number: block.0,
        launch: what.launch,
        kernel: program.kernel_name(Launch(what.launch)).to_owned(),
        at_us: at.as_micros_f64(),
        block: (&why).into(),
        after: after.iter().map(DecisionView::from).collect(),
    };
    if json {
        println!("{}", serde_json::to_string(&answer)?);
    } else {
        print!("{}", text(&answer));
    }
    Ok(())
}

/// The question in the trace's own terms.
fn ask(program: &Program, what: BlockAtLaunch) -> Result<Ask> {
    let launches = program.launches().len();
    if what.launch as usize >= launches {
        return usage(format!(
            "--explain: {} has launches 0 to {}, and no launch {}",
            program.name(),
            launches.saturating_sub(1),
            what.launch
        ));
    }
    let address = match what.block {
        Named::Number(number) if (number as usize) < program.blocks() => {
            program.address(Block(number))
        }
        Named::Number(number) => {
            return usage(format!(
                "--explain: {} has blocks 0 to {}, and no block {number}",
                program.name(),
                program.blocks().saturating_sub(1)
            ));
        }
        Named::Address(address) if program.block_at(address).is_some() => address,
        Named::Address(address) => {
            return usage(format!(
                "--explain: {} never has memory at {address:#x}",
                program.name()
            ));
        }
    };
    Ok(Ask {
        address: address / BLOCK_BYTES * BLOCK_BYTES,
        launch: Launch(what.launch),
    })
}

fn text(answer: &Answer) -> String {
    let mut text = format!(
        "{}, {}, {} of device memory\nblock {} ({:#x}) when launch {} ({}) begins, at {:.3} ms:\n{}",
        answer.trace,
        answer.policy,
        Size(answer.memory_bytes),
        answer.block_number,
        answer.block.address,
        answer.launch,
        answer.kernel,
        answer.at_us / 1e3,
        why::state(&answer.block)
    );
    let parts = [
        ("  before:\n", &answer.block.decisions),
        ("  from then on:\n", &answer.after),
    ];
    for (head, decisions) in parts {
        text.push_str(head);
        if decisions.is_empty() {
            text.push_str("    nothing was decided about it\n");
        }
        let shown = decisions.len().saturating_sub(SHOWN);
        let newest = if head.contains("before") {
            &decisions[shown..]
        } else {
            &decisions[..decisions.len() - shown]
        };
        text.push_str(&why::decisions(newest, false));
    }
    text
}

/// Decisions shown before and after; all are in `--json`.
const SHOWN: usize = 8;

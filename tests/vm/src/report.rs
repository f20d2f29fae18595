//! Prints results, as lines and as JSON.

use std::collections::BTreeSet;
use std::time::Duration;

use oversub_vm::asked::AttachCounts;
use oversub_vm::chosen::{Source, SourceCounts};
use oversub_vm::combination::Combination;
use oversub_vm::kernel::SelfChecks;
use oversub_vm::plan::{FaultCounts, Outcome, ProbeCounts, Rounded};
use serde_json::{Map, Value, json};

use crate::product::Figures;
use crate::sources;

/// What became of one combination.
#[derive(Debug)]
pub struct Verdict {
    /// Which one.
    pub combination: Combination,
    /// Version of the driver that ran.
    pub driver: String,
    /// Release of the kernel that ran.
    pub kernel: String,
    /// Until init began.
    pub boot_seconds: f64,
    /// What QEMU took of the host's processors: unlike the time, no matter what else runs.
    pub processor_seconds: f64,
    /// Its rounds.
    pub rounds: Vec<Rounded>,
    /// The counts that are reported.
    pub counts: FaultCounts,
    /// What the product's probes saw.
    pub observed: ProbeCounts,
    /// How the product's probes were attached, of all ways that were tried.
    pub attached: BTreeSet<String>,
    /// What the kernel checked of itself meanwhile.
    pub self_checks: SelfChecks,
    /// What oversub changes, by program.
    pub products: Vec<(&'static str, Figures)>,
    /// Nothing was wrong.
    pub passed: bool,
    /// What was.
    pub wrong: Vec<String>,
}

impl Verdict {
    /// Of a combination that gave no answer.
    pub fn failed(combination: Combination, error: &anyhow::Error) -> Self {
        Self {
            combination,
            driver: String::new(),
            kernel: String::new(),
            boot_seconds: 0.0,
            processor_seconds: 0.0,
            rounds: Vec::new(),
            counts: FaultCounts::default(),
            observed: ProbeCounts::default(),
            attached: BTreeSet::new(),
            self_checks: SelfChecks::default(),
            products: Vec::new(),
            passed: false,
            wrong: vec![format!("{error:#}")],
        }
    }

    /// Says it in a few lines.
    pub fn print(&self, took: Duration) {
        let state = if self.passed { "passed" } else { "FAILED" };
        eprintln!(
            "{state}  {}  driver {} on {}: boot {:.1} s, all {:.1} s, {:.1} s of processors; {} faults by procfs, {} by the \
             tools queue, {} MiB evicted",
            self.combination,
            self.driver,
            self.kernel,
            self.boot_seconds,
            took.as_secs_f64(),
            self.processor_seconds,
            self.counts.procfs,
            self.counts.tools,
            self.counts.evicted_bytes >> 20,
        );
        let observed = &self.observed;
        eprintln!(
            "        probes: {} faults, {} batches, {} evictions; procfs: {} and {}; queue: {} and {}",
            observed.probes.faults,
            observed.probes.batches,
            observed.probes.evictions,
            observed.procfs.faults,
            observed.procfs.batches,
            observed.queue.faults,
            observed.queue.batches,
        );
        if !self.attached.is_empty() {
            let attached: Vec<_> = self.attached.iter().map(String::as_str).collect();
            eprintln!("        probes attached as {}", attached.join(", "));
        }
        for round in &self.rounds {
            let kind = if round.outcome.is_ok() {
                "done"
            } else {
                "failed"
            };
            let counts = match &round.outcome {
                Ok(Outcome::Checked(found)) => found.to_string(),
                Ok(Outcome::Attach(counts)) => attach_text(counts),
                Ok(Outcome::Source(counts)) => source_text(counts),
                _ => String::new(),
            };
            eprintln!(
                "        {}: {kind} in {:.1} s, {:.1} s of processors{counts}",
                round.name, round.seconds, round.processor_seconds
            );
        }
        for (program, figures) in &self.products {
            eprintln!(
                "        {program}, steady state: {:.1} % fewer GPU faults than the driver alone, {:.2} of \
                 its bytes",
                100.0 * figures.fault_reduction,
                figures.bytes_ratio
            );
        }
        for line in &self.wrong {
            eprintln!("        wrong: {line}");
        }
    }

    fn product(&self) -> Map<String, Value> {
        let figures = self.products.iter();
        figures
            .map(|(program, figures)| ((*program).to_owned(), figures.json()))
            .collect()
    }

    fn json(&self) -> Value {
        let build = self.combination.build;
        json!({
            "driver": self.driver,
            "flavour": build.flavour.to_string(),
            "kernel": build.kernel.to_string(),
            "kernel_release": self.kernel,
            "btf": self.combination.btf,
            "faults_device": self.observed.device_faults,
            "faults_probe": self.observed.probes.faults,
            "faults_procfs": self.observed.procfs.faults,
            "faults_tools": self.observed.queue.faults,
            "layout_verified": self.observed.verified,
            "attached": self.attached,
            "lockdep": self.self_checks.lockdep,
            "kasan": self.self_checks.kasan,
            "evicted_bytes": self.counts.evicted_bytes,
            "drops": self.counts.tools_dropped
                + self.observed.probe_drops
                + self.observed.queue_drops,
            "product": self.product(),
            "passed": self.passed,
            "wrong": self.wrong,
        })
    }
}

/// How many requests to attach were granted and refused, and what came of them.
fn attach_text(counts: &AttachCounts) -> String {
    let granted = counts.answers.iter().filter(|answer| answer.granted);
    let steered = granted.clone().filter(|answer| answer.moved_bytes > 0);
    let moved: u64 = steered.clone().map(|answer| answer.moved_bytes).sum();
    let (all, granted) = (counts.answers.len(), granted.count());
    let kept: u64 = counts.answers.iter().map(|answer| answer.left).sum();
    format!(
        "; granted {granted}; refused {}; steered {}; MiB moved {}; descriptors kept {kept}",
        all - granted,
        steered.count(),
        moved >> 20
    )
}

/// What sources were chosen where BPF cannot be used, and what came of it.
fn source_text(counts: &SourceCounts) -> String {
    let of = |source: &Source| {
        let chosen = source.events.split(':').next().unwrap_or_default();
        let mode = source.mode.as_deref().unwrap_or("default");
        format!("; {:?} {mode}: {chosen}", source.hindrance)
    };
    let chosen: String = counts.sources.iter().map(of).collect();
    format!(
        "{chosen}; by the queue {:.1} % fewer faults",
        100.0 * sources::reduction(counts)
    )
}

/// What was not seen of all that was asked for, because no kernel here has it.
pub fn not_seen(results: &[Verdict]) -> Option<String> {
    let ran = || results.iter().filter(|result| !result.kernel.is_empty());
    let missing: Vec<_> = [
        (
            "lockdep (CONFIG_PROVE_LOCKING)",
            ran().any(|r| r.self_checks.lockdep),
        ),
        ("KASAN (CONFIG_KASAN)", ran().any(|r| r.self_checks.kasan)),
    ]
    .into_iter()
    .filter(|(_, seen)| !seen)
    .map(|(name, _)| name)
    .collect();
    (!missing.is_empty() && ran().next().is_some()).then(|| {
        format!(
            "not run with {}: none of these kernels of Debian is built with it",
            missing.join(" and ")
        )
    })
}

/// All results as one object. The product's figures are those of the first combination that
/// has some.
pub fn json(results: &[Verdict]) -> String {
    let combinations: Vec<_> = results.iter().map(Verdict::json).collect();
    let with_product = results.iter().find(|result| !result.products.is_empty());
    let product = with_product.map_or_else(Map::new, Verdict::product);
    json!({ "combinations": combinations, "product": product }).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ran(lockdep: bool, kasan: bool) -> Verdict {
        let mut verdict = Verdict::failed(Combination::DEFAULT, &anyhow::anyhow!("no"));
        verdict.kernel = "6.1".to_owned();
        verdict.self_checks = SelfChecks { lockdep, kasan };
        verdict
    }

    #[test]
    fn what_no_kernel_checked_is_told_and_what_one_did_is_not() {
        let line = not_seen(&[ran(false, false), ran(true, false)]).unwrap();
        assert!(
            line.contains("KASAN") && !line.contains("lockdep"),
            "{line}"
        );
        assert_eq!(not_seen(&[ran(true, true)]), None);
    }

    #[test]
    fn the_products_figures_are_of_the_first_combination_that_has_some() {
        let mut with = ran(false, false);
        let figures = Figures {
            checksum_ok: true,
            fault_reduction: 0.97,
            bytes_ratio: 0.4,
        };
        with.products.push(("sweep", figures));
        let value: Value = serde_json::from_str(&json(&[ran(false, false), with])).unwrap();
        assert_eq!(value["product"]["sweep"]["fault_reduction"], 0.97);
        assert_eq!(value["combinations"][0]["product"], json!({}));
        assert_eq!(value["combinations"][0]["passed"], false);
    }
}

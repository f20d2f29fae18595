//! What Prometheus gets of [`crate::probes::totals`]: the driver's doings by device,
//! process and container.
//!
//! Families are made anew for each answer, from counters that never go back. The labels of a
//! process are its number and the control group that it runs in, which names its container;
//! processes that ended share the label `ended`.

use std::collections::BTreeMap;
use std::path::Path;

use oversub_bpf::{HostFacts, gpus};
use prometheus::TextEncoder;
use prometheus::proto::{
    Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType,
};

use crate::probes::totals::{BUCKETS, CAUSES, DIRECTIONS, DriverTotals, PAYERS, Totals, Who};

/// Longest label of a container.
const CONTAINER_BYTES: usize = 128;

/// Names of devices and processes, as they were last seen: a device has no name while no
/// process uses it.
#[derive(Debug, Default)]
pub struct Names {
    devices: BTreeMap<u16, Device>,
    containers: BTreeMap<u32, String>,
}

/// A device's label, and its place on the bus where the driver says it.
#[derive(Debug, Default)]
struct Device {
    name: String,
    pci: String,
}

impl Names {
    /// Looks at the host: names what is new, and folds the counters of processes that ended.
    pub fn refresh(&mut self, totals: &mut DriverTotals) {
        for gpu in gpus::list(HostFacts::driver_version()) {
            let name = match gpu.part {
                Some(part) => format!("{}/{part}", gpu.uuid),
                None => gpu.uuid,
            };
            let pci = gpu.pci.unwrap_or_default();
            self.devices.insert(gpu.processor, Device { name, pci });
        }
        for process in totals.processes() {
            let folder = format!("/proc/{process}");
            if !Path::new(&folder).exists() {
                totals.end(process);
                self.containers.remove(&process);
            } else if let Ok(text) = std::fs::read_to_string(format!("{folder}/cgroup")) {
                self.containers.insert(process, container(&text));
            }
        }
    }

    fn labels(&self, who: Who, processor: u16) -> [(&'static str, String); 3] {
        let device = match (processor, self.devices.get(&processor)) {
            // Faults of the host, and what the driver does not tell the device of.
            (0, _) => "none".to_owned(),
            (_, Some(device)) => device.name.clone(),
            (_, None) => format!("processor-{processor}"),
        };
        let (process, container) = match who {
            Who::Process(process) => (
                process.to_string(),
                self.containers.get(&process).cloned().unwrap_or_default(),
            ),
            Who::Unknown => ("unknown".to_owned(), String::new()),
            Who::Other => ("other".to_owned(), String::new()),
            Who::Ended => ("ended".to_owned(), String::new()),
        };
        [
            ("gpu", device),
            ("process", process),
            ("container", container),
        ]
    }
}

/// The control group in `/proc/PID/cgroup`: the unified hierarchy's, or the first one.
fn container(text: &str) -> String {
    let path = |line: &str| line.splitn(3, ':').nth(2).map(str::to_owned);
    let unified = text.lines().find(|line| line.starts_with("0::"));
    let found = unified.or(text.lines().next()).and_then(path);
    let mut path = found.unwrap_or_default();
    // The end of a path names the container.
    if path.len() > CONTAINER_BYTES {
        let mut from = path.len() - CONTAINER_BYTES;
        while !path.is_char_boundary(from) {
            from += 1;
        }
        path = path.split_off(from);
    }
    path
}

type Value = fn(&Totals) -> u64;

/// Counters with the three labels alone: name, help, where the figure is.
const COUNTERS: [(&str, &str, Value); 8] = [
    (
        "oversub_driver_gpu_faults_total",
        "Faults of the device that nvidia-uvm served, after its merging of duplicates.",
        |totals| totals.faults,
    ),
    (
        "oversub_driver_gpu_raw_faults_total",
        "Faults of the device that nvidia-uvm served, as the device reported them.",
        |totals| totals.raw_faults,
    ),
    (
        "oversub_driver_block_faults_total",
        "Blocks of 2 MiB that faulted in a batch; known also where single faults are not.",
        |totals| totals.block_faults,
    ),
    (
        "oversub_driver_host_faults_total",
        "Faults of the host on managed memory that nvidia-uvm served.",
        |totals| totals.host_faults,
    ),
    (
        "oversub_driver_fault_batches_total",
        "Batches in which nvidia-uvm served faults.",
        |totals| totals.batches,
    ),
    (
        "oversub_driver_capacity_faults_total",
        "Faults on blocks that had been evicted less than a second before.",
        |totals| totals.capacity_faults,
    ),
    (
        "oversub_driver_thrashing_total",
        "Times that nvidia-uvm saw processors fight for pages.",
        |totals| totals.thrashing,
    ),
    (
        "oversub_driver_throttles_total",
        "Times that nvidia-uvm made a processor wait because others fought for its page.",
        |totals| totals.throttles,
    ),
];

/// The text of all families.
///
/// # Errors
/// Encoding failed.
pub fn text(totals: &DriverTotals, names: &Names) -> prometheus::Result<String> {
    TextEncoder::new().encode_to_string(&families(totals, names))
}

fn families(totals: &DriverTotals, names: &Names) -> Vec<MetricFamily> {
    let each: Vec<(Vec<LabelPair>, &Totals)> = totals
        .iter()
        .map(|(who, processor, totals)| {
            let labels = names.labels(who, processor);
            (
                labels.map(|(name, value)| label(name, &value)).to_vec(),
                totals,
            )
        })
        .collect();
    let mut families = Vec::new();
    for (name, help, value) in COUNTERS {
        let metrics = each
            .iter()
            .map(|(labels, totals)| counter(labels.clone(), value(totals)));
        families.push(family(name, help, MetricType::COUNTER, metrics.collect()));
    }
    for (name, help, table) in [
        (
            "oversub_driver_migrated_bytes_total",
            "Bytes of managed memory that nvidia-uvm moved.",
            (|totals| &totals.bytes) as fn(&Totals) -> &[[u64; CAUSES.len()]; DIRECTIONS.len()],
        ),
        (
            "oversub_driver_migrations_total",
            "Moves of managed memory that nvidia-uvm made.",
            |totals| &totals.moves,
        ),
    ] {
        let mut metrics = Vec::new();
        for (labels, totals) in &each {
            for (direction, row) in DIRECTIONS.iter().zip(table(totals)) {
                for (cause, value) in CAUSES.iter().zip(row).filter(|(_, value)| **value > 0) {
                    let mut labels = labels.clone();
                    labels.extend([label("direction", direction), label("cause", cause)]);
                    metrics.push(counter(labels, *value));
                }
            }
        }
        families.push(family(name, help, MetricType::COUNTER, metrics));
    }
    let mut metrics = Vec::new();
    for (labels, totals) in &each {
        for (payer, row) in PAYERS.iter().zip(&totals.evictions) {
            for (kind, value) in ["unused", "used"].iter().zip(row).filter(|(_, v)| **v > 0) {
                let mut labels = labels.clone();
                labels.extend([label("kind", kind), label("payer", payer)]);
                metrics.push(counter(labels, *value));
            }
        }
    }
    families.push(family(
        "oversub_driver_evictions_total",
        "Blocks that lost device memory, by whether they were copied and for whose sake.",
        MetricType::COUNTER,
        metrics,
    ));
    let metrics = each
        .iter()
        .filter(|(_, totals)| totals.batches > 0)
        .map(|(labels, totals)| histogram(labels.clone(), totals));
    families.push(family(
        "oversub_driver_batch_seconds",
        "From the first fault of a batch to its replay.",
        MetricType::HISTOGRAM,
        metrics.collect(),
    ));
    let metrics = names.devices.values().map(|device| {
        let mut gauge = Gauge::default();
        gauge.set_value(1.0);
        let mut metric =
            Metric::from_label(vec![label("gpu", &device.name), label("pci", &device.pci)]);
        metric.set_gauge(gauge);
        metric
    });
    families.push(family(
        "oversub_driver_device_info",
        "Always 1; where a device, or the device of a part, is on the bus.",
        MetricType::GAUGE,
        metrics.collect(),
    ));
    // A family without series is no family.
    families.retain(|family| !family.get_metric().is_empty());
    families
}

fn family(name: &str, help: &str, kind: MetricType, metrics: Vec<Metric>) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(name.to_owned());
    family.set_help(help.to_owned());
    family.set_field_type(kind);
    family.set_metric(metrics);
    family
}

fn label(name: &str, value: &str) -> LabelPair {
    let mut label = LabelPair::default();
    label.set_name(name.to_owned());
    label.set_value(value.to_owned());
    label
}

fn counter(labels: Vec<LabelPair>, value: u64) -> Metric {
    let mut counter = Counter::default();
    counter.set_value(value as f64);
    let mut metric = Metric::from_label(labels);
    metric.set_counter(counter);
    metric
}

fn histogram(labels: Vec<LabelPair>, totals: &Totals) -> Metric {
    let mut histogram = Histogram::default();
    let mut seen = 0;
    let mut buckets = Vec::with_capacity(BUCKETS);
    for (index, count) in totals.latency.iter().enumerate().take(BUCKETS - 1) {
        seen += count;
        let mut bucket = Bucket::default();
        bucket.set_upper_bound((1u64 << index) as f64 / 1e6);
        bucket.set_cumulative_count(seen);
        buckets.push(bucket);
    }
    histogram.set_bucket(buckets);
    histogram.set_sample_count(totals.batches);
    histogram.set_sample_sum(totals.latency_ns as f64 / 1e9);
    let mut metric = Metric::from_label(labels);
    metric.set_histogram(histogram);
    metric
}

#[cfg(test)]
mod tests {
    use super::*;
    use oversub_bpf::{Cause, Direction, ProbeEvent, Source, What};

    fn totals() -> DriverTotals {
        let mut totals = DriverTotals::default();
        let mut take = |tgid, processor, what| {
            totals.take(&ProbeEvent {
                time_ns: 1,
                tgid,
                source: Source::Uvm,
                space: 1,
                processor,
                what,
            });
        };
        let address = 0;
        take(
            Some(7),
            1,
            What::Batch {
                batch: 1,
                faults: 2,
                service_ns: 300_000,
            },
        );
        take(
            Some(7),
            1,
            What::Migration {
                address,
                bytes: 4096,
                direction: Direction::IN,
                cause: Cause::PREFETCH,
            },
        );
        totals
    }

    #[test]
    fn series_name_device_process_and_container() {
        let names = Names {
            devices: BTreeMap::from([(
                1,
                Device {
                    name: "GPU-1".to_owned(),
                    pci: "0000:3b:00.0".to_owned(),
                },
            )]),
            containers: BTreeMap::from([(7, "/pod/c".to_owned())]),
        };
        let text = text(&totals(), &names).expect("encodes");
        let labels = r#"gpu="GPU-1",process="7",container="/pod/c""#;
        for line in [
            format!("oversub_driver_fault_batches_total{{{labels}}} 1\n"),
            "oversub_driver_device_info{gpu=\"GPU-1\",pci=\"0000:3b:00.0\"} 1\n".to_owned(),
            format!(
                "oversub_driver_migrated_bytes_total{{{labels},direction=\"in\",cause=\"density\"}} 4096\n"
            ),
            format!("oversub_driver_batch_seconds_bucket{{{labels},le=\"0.000512\"}} 1\n"),
            format!("oversub_driver_batch_seconds_bucket{{{labels},le=\"0.000256\"}} 0\n"),
            format!("oversub_driver_batch_seconds_bucket{{{labels},le=\"+Inf\"}} 1\n"),
            format!("oversub_driver_batch_seconds_sum{{{labels}}} 0.0003\n"),
        ] {
            assert!(text.contains(&line), "no {line}in\n{text}");
        }
    }

    #[test]
    fn an_unnamed_device_goes_by_its_number_and_a_gone_process_by_what_it_is() {
        let names = Names::default();
        assert_eq!(names.labels(Who::Ended, 9)[0].1, "processor-9");
        assert_eq!(names.labels(Who::Ended, 9)[1].1, "ended");
        assert_eq!(names.labels(Who::Unknown, 0)[0].1, "none");
    }

    #[test]
    fn without_events_there_are_no_families() {
        let text = text(&DriverTotals::default(), &Names::default()).expect("encodes");
        assert_eq!(text, "");
    }

    #[test]
    fn the_container_is_the_end_of_the_unified_path() {
        assert_eq!(
            container("12:cpu:/a\n0::/kube/pod1/abc\n"),
            "/kube/pod1/abc"
        );
        assert_eq!(container("12:cpu:/a:b\n"), "/a:b");
        assert_eq!(container(""), "");
        let long = format!("0::/{}/end", "ü".repeat(200));
        assert!(container(&long).len() <= CONTAINER_BYTES && container(&long).ends_with("/end"));
    }

    #[test]
    fn a_process_that_ended_is_folded_when_names_are_refreshed() {
        let mut totals = DriverTotals::default();
        // Beyond the largest process number that Linux gives.
        totals.take(&ProbeEvent {
            time_ns: 1,
            tgid: Some(u32::MAX),
            source: Source::Uvm,
            space: 1,
            processor: 1,
            what: What::Throttle { address: 0 },
        });
        Names::default().refresh(&mut totals);
        let left: Vec<Who> = totals.iter().map(|(who, _, _)| who).collect();
        assert_eq!(left, [Who::Ended]);
    }
}

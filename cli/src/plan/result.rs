//! What a plan says, as `--json` prints it and `report` reads it.

use serde::{Deserialize, Serialize};

/// One trace over sizes of device memory and links.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanResult {
    /// The trace file's stem.
    pub trace: String,
    /// Policy that was simulated.
    pub policy: String,
    /// Most memory that the program has populated at once.
    pub footprint_bytes: u64,
    /// Time of an iteration with everything resident.
    pub ideal_us: f64,
    /// One curve for each link.
    pub links: Vec<Curve>,
}

/// The slowdown over device memory sizes, with one link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    /// Name on the command line.
    pub link: String,
    /// Rate to the device, bytes per second.
    pub link_in: u64,
    /// Rate to the host, bytes per second.
    pub link_out: u64,
    /// The least memory found with which an iteration takes at most 5 % more.
    pub within_5_percent: Option<Point>,
    /// And at most 20 % more.
    pub within_20_percent: Option<Point>,
    /// Largest memory first.
    pub points: Vec<Point>,
}

/// One size of device memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Device memory for the program.
    pub memory_bytes: u64,
    /// The size by which a card with this much is sold; none for a fraction of the
    /// footprint or a size that was searched for.
    pub card: Option<String>,
    /// Footprint over memory.
    pub ratio: f64,
    /// Time of a steady iteration.
    pub iteration_us: f64,
    /// That over the time with everything resident.
    pub slowdown: f64,
    /// Bytes to the device, per iteration.
    pub bytes_in: u64,
    /// Bytes to the host, per iteration.
    pub bytes_out: u64,
}

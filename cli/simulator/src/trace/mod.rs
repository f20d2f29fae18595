//! Traces: programs in memory, how they are built, read from files and made from parameters.

mod builder;
pub mod changes;
pub mod families;
mod indexed;
mod intern;
mod program;
mod random;
mod reader;
mod repeat;
mod touches;

pub use builder::{BuildError, LaunchSpec, Limits, ProgramBuilder};
pub use indexed::Indexed;
pub use program::{
    Access, Block, Call, Kind, Launch, LaunchInfo, Mode, Piece, Program, Span, Step,
};
pub use random::Random;
pub use reader::{LINE_BYTES, Problem, TraceError, read, read_from};
pub use repeat::RepeatError;

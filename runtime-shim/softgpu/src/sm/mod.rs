//! The processors that run kernels.

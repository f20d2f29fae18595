//! Streaming multiprocessors: threads and fibres that run kernels.

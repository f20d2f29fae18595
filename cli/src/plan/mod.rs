//! `oversub plan`: what each size of device memory would cost a trace.

pub mod result;

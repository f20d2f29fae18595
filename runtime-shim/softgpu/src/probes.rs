//! The probe points.

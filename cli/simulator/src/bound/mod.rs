//! Lower bounds on the time of an iteration: what no policy can beat.

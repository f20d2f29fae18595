//! Whether blocks are exchanged with the host where launches can use them there.
//!
//! Within a budget the device uses over the link what lies on the host ([`World::remote`]), so a
//! block need not be fetched to be used, and it may be better not to: on an H100 a device uses
//! 2 MiB of the host in 0.05 ms, while nvidia-uvm takes 0.3 ms to evict a block and fetch another
//! (580.159). Programs that use what they use once gain nothing by an exchange. Those that use it
//! many times do, and where the link is idle beside long launches an exchange costs nothing.
//!
//! So that is measured: at first nothing is exchanged, what fits is on the device and the rest
//! is used where it lies. Once the program repeats itself, blocks are exchanged for some of its
//! turns. If launches are over sooner then, that goes on, until they take much longer again; else it
//! ends, at the latest when it cannot have been worth it, and is tried again after many turns.

use super::marks::{Marks, Moment};
use super::on_host::turn;
use crate::units::Micros;
use crate::world::World;

/// Launches are over sooner only if it is by more than this.
const NOISE: f64 = 1.05;
/// Turns that frames are given to settle, before what launches take is measured.
const SETTLE: u64 = 2;
/// A trial ends that has taken so many times as long as its launches did without.
const GIVE_UP: f64 = 1.5;
/// Launches that take so many times as long as they did do something else.
const RISEN: f64 = 1.25;
/// After a disappointment it is tried again after so many turns, and after so many times as many
/// each time.
const PATIENCE: u64 = 16;
const MORE: u64 = 4;

#[derive(Clone, Copy, PartialEq, Debug)]
enum State {
    /// Nothing is exchanged, since this launch.
    Holds { since: u64 },
    /// It is tried whether exchanging is better.
    Tries {
        since: Moment,
        turn: u64,
        before_us: f64,
    },
    /// Blocks are exchanged. A launch took so long then, microseconds, and takes much longer
    /// since that launch.
    Exchanges { launch_us: f64, risen: Option<u64> },
}

/// What is done, and what launches took.
#[derive(Debug)]
pub(crate) struct Exchange {
    state: State,
    marks: Marks,
    /// Turns before the next trial.
    wait: u64,
    patience: u64,
}

impl Default for Exchange {
    fn default() -> Self {
        Self {
            state: State::Holds { since: 0 },
            marks: Marks::default(),
            wait: 1,
            patience: PATIENCE,
        }
    }
}

impl Exchange {
    /// Blocks are exchanged now. Where launches cannot use the host's they always are.
    pub(crate) fn allowed(&self, world: &World) -> bool {
        !world.remote || !matches!(self.state, State::Holds { .. })
    }

    /// Looks at what launches took.
    pub(crate) fn consider(&mut self, now: Micros, world: &World) {
        if !world.remote {
            return;
        }
        self.look((world.floor(), now), turn(world));
    }

    /// The device has come so far. `turn`: the launches after which the program repeats itself.
    fn look(&mut self, moment: Moment, turn: Option<u64>) {
        self.marks.pass(moment, turn);
        self.state = match (self.state, turn) {
            (State::Holds { since }, Some(turn)) => self.held(since, turn, moment),
            (
                State::Tries {
                    since,
                    turn,
                    before_us,
                },
                now,
            ) if now == Some(turn) => self.tried((since, turn, before_us), moment),
            // The program does something else: there is nothing to compare with.
            (State::Tries { .. }, _) => State::Holds { since: moment.0 },
            (State::Exchanges { launch_us, risen }, Some(turn)) => {
                self.exchanged((launch_us, risen), turn, moment)
            }
            (state, None) => state,
        };
    }

    fn held(&self, since: u64, turn: u64, moment: Moment) -> State {
        let launches = self.marks.turns(turn);
        let due = moment.0 >= since.saturating_add(launches.saturating_mul(self.wait));
        match self.marks.newest(launches) {
            Some(last) if due && last.since.0 >= since => State::Tries {
                since: moment,
                turn,
                before_us: last.launch_us,
            },
            _ => State::Holds { since },
        }
    }

    fn tried(&mut self, (since, turn, before_us): (Moment, u64, f64), moment: Moment) -> State {
        let launches = self.marks.turns(turn);
        let all = (SETTLE + 1) * launches;
        let passed = moment.0.saturating_sub(since.0);
        let took_us = moment.1.0.saturating_sub(since.1.0) as f64;
        if took_us > GIVE_UP * before_us * all as f64 {
            return self.disappointed(moment);
        }
        if passed < all {
            return State::Tries {
                since,
                turn,
                before_us,
            };
        }
        match self.marks.newest(launches) {
            Some(last) if last.launch_us * NOISE < before_us => {
                self.patience = PATIENCE;
                State::Exchanges {
                    launch_us: last.launch_us,
                    risen: None,
                }
            }
            _ => self.disappointed(moment),
        }
    }

    fn disappointed(&mut self, moment: Moment) -> State {
        self.wait = self.patience;
        self.patience = self.patience.saturating_mul(MORE);
        State::Holds { since: moment.0 }
    }

    fn exchanged(
        &mut self,
        (launch_us, risen): (f64, Option<u64>),
        turn: u64,
        moment: Moment,
    ) -> State {
        let launches = self.marks.turns(turn);
        let Some(last) = self.marks.newest(launches) else {
            return State::Exchanges { launch_us, risen };
        };
        if last.launch_us <= launch_us * RISEN {
            let launch_us = launch_us.min(last.launch_us);
            return State::Exchanges {
                launch_us,
                risen: None,
            };
        }
        let since = risen.unwrap_or(moment.0);
        // What one turn does otherwise is over with it.
        if moment.0 < since.saturating_add(2 * launches) {
            return State::Exchanges {
                launch_us,
                risen: Some(since),
            };
        }
        self.wait = SETTLE;
        State::Holds { since: moment.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TURN: u64 = 32;

    /// A program and what its launches take, while nothing is exchanged and otherwise.
    struct Program {
        exchange: Exchange,
        launch: u64,
        now: u64,
    }

    impl Program {
        fn new() -> Self {
            let exchange = Exchange::default();
            Self {
                exchange,
                launch: 0,
                now: 0,
            }
        }

        fn exchanges(&self) -> bool {
            !matches!(self.exchange.state, State::Holds { .. })
        }

        /// So many turns; in how many launches blocks were exchanged.
        fn turns(
            &mut self,
            turns: u64,
            turn: Option<u64>,
            held_us: u64,
            exchanging_us: u64,
        ) -> u64 {
            let mut exchanging = 0;
            for _ in 0..turns * TURN {
                let exchanges = self.exchanges();
                exchanging += u64::from(exchanges);
                self.launch += 1;
                self.now += if exchanges { exchanging_us } else { held_us };
                self.exchange.look((self.launch, Micros(self.now)), turn);
            }
            exchanging
        }
    }

    #[test]
    fn what_makes_launches_faster_goes_on() {
        let mut program = Program::new();
        assert_eq!(program.turns(8, None, 100, 50), 0, "nothing repeats itself");
        program.turns(3, Some(TURN), 100, 50);
        assert_eq!(program.turns(40, Some(TURN), 100, 50), 40 * TURN);
    }

    #[test]
    fn what_does_not_ends_after_three_turns_and_is_tried_ever_more_seldom() {
        for exchanging_us in [100, 97] {
            let mut program = Program::new();
            let tries = program.turns(10, Some(TURN), 100, exchanging_us);
            assert!((2 * TURN..=4 * TURN).contains(&tries), "{tries}");
            let later = program.turns(300, Some(TURN), 100, exchanging_us);
            assert!(later <= 3 * 4 * TURN, "{later} of {}", 300 * TURN);
        }
    }

    #[test]
    fn what_makes_launches_much_slower_ends_before_a_turn_is_over() {
        let mut program = Program::new();
        let tries = program.turns(10, Some(TURN), 100, 1_000);
        assert!(tries <= TURN / 2, "{tries}");
    }

    #[test]
    fn where_launches_come_to_take_longer_it_ends_and_begins_anew() {
        let mut program = Program::new();
        program.turns(10, Some(TURN), 100, 50);
        assert!(program.exchanges());
        program.turns(6, Some(TURN), 100, 400);
        assert!(!program.exchanges());
        program.turns(PATIENCE + 4, Some(TURN), 100, 50);
        assert!(program.exchanges());
    }

    #[test]
    fn a_trial_ends_with_the_turn_that_it_was_about() {
        let mut program = Program::new();
        while !program.exchanges() {
            program.turns(1, Some(TURN), 100, 50);
        }
        program.turns(1, Some(TURN + 3), 100, 50);
        assert!(!program.exchanges());
    }
}

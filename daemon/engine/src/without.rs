//! Parts of `foresight` that can be left out, to see what each is worth.

/// What is left out. Nothing by default; not meant for use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Without {
    /// Launches' pointer arguments say nothing of what they use: only faults do.
    pub arguments: bool,
    /// Victims go by last use, not by next use.
    pub next_use: bool,
    /// Nothing is fetched while something is evicted, and the other way round.
    pub duplex: bool,
    /// Dead content is written back and fetched as any other.
    pub discard: bool,
    /// Faults correct nothing, usefulness and idle links change nothing.
    pub feedback: bool,
    /// The driver evicts, what it moved least recently; a fixed number of launches is looked
    /// ahead.
    pub planner: bool,
}

impl Without {
    /// The parts by name, in the order of the fields, with what they do.
    pub const PARTS: [(&'static str, &'static str); 6] = [
        ("arguments", "pointer arguments tell what a launch uses"),
        ("next-use", "victims are chosen by next use"),
        ("duplex", "both directions of the link at once"),
        ("discard", "dead content is dropped"),
        ("feedback", "faults and usefulness correct"),
        ("planner", "evictions are planned ahead"),
    ];

    /// With this part left out as well; none where there is no such part.
    #[must_use]
    pub fn and(mut self, part: &str) -> Option<Self> {
        let field = match part {
            "arguments" => &mut self.arguments,
            "next-use" => &mut self.next_use,
            "duplex" => &mut self.duplex,
            "discard" => &mut self.discard,
            "feedback" => &mut self.feedback,
            "planner" => &mut self.planner,
            _ => return None,
        };
        *field = true;
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_is_left_out_by_its_name() {
        let each = Without::PARTS.map(|(name, _)| Without::default().and(name));
        assert!(each.iter().all(Option::is_some));
        for (index, one) in each.iter().enumerate() {
            assert!(!each[..index].contains(one), "{one:?}");
            assert_ne!(*one, Some(Without::default()));
        }
        assert_eq!(Without::default().and("nothing"), None);
    }
}

//! The state of one item in a card, and how it changes.
//!
//! ```text
//! absent ─ place ─▶ pending ─ live ─▶ live ─ change ─▶ stale ─ withdrawn ─▶ withdrawn
//!                      └─ refused ─▶ refused   ◀─ restamp ─┘
//! ```
//!
//! Marks of an item count in the state `live` alone. Nothing but a card's answer to an item that is
//! still wanted, or a new look at an item that is in the card, leads there.

/// The state of an item.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum State {
    /// Not in the card: never placed, or the card lost it.
    #[default]
    Absent,
    /// The card was asked and has not answered.
    Pending(Outlook),
    /// In the card, and its marks count.
    Live,
    /// In the card, and its marks do not count.
    Stale(Stale),
    /// The card confirmed that the item is gone.
    Withdrawn,
    /// The card refused the item.
    Refused,
}

/// The plans for an item that is pending.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Outlook {
    /// The item is wanted as it was asked for.
    Wanted,
    /// The rules changed: it is not known whether the item still says what they say.
    Changed,
    /// The item is to go.
    Leaving,
}

/// The reason why an item in the card is stale.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Stale {
    /// The rules changed: it is not known whether the item still says what they say.
    Changed,
    /// The card was asked to take it out.
    Leaving,
}

/// Something that happens to an item.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Happening {
    /// The card is asked to take it in.
    Place,
    /// The rules change around it.
    Change,
    /// The planner finds that it says what the rules say.
    Restamp,
    /// The card is asked to take it out.
    Withdraw,
    /// The card says that it is in.
    Live,
    /// The card says that it refuses it.
    Refused,
    /// The card says that it is out.
    Withdrawn,
    /// The card lost everything.
    Lost,
}

impl State {
    /// Its name, as operators see it.
    pub const fn name(self) -> &'static str {
        match self {
            State::Absent => "absent",
            State::Pending(_) => "pending",
            State::Live => "live",
            State::Stale(_) => "stale",
            State::Withdrawn => "withdrawn",
            State::Refused => "refused",
        }
    }

    /// Returns whether the item may be in the card.
    pub const fn takes_room(self) -> bool {
        matches!(self, State::Pending(_) | State::Live | State::Stale(_))
    }

    /// Returns whether the card says that it has the item, and nobody asked for it to go: then it
    /// comes before items of lower rank.
    pub const fn stands_before_others(self) -> bool {
        matches!(self, State::Live | State::Stale(Stale::Changed))
    }

    /// Returns whether the item is on its way out, or out.
    pub const fn is_going(self) -> bool {
        !matches!(
            self,
            State::Pending(Outlook::Wanted | Outlook::Changed)
                | State::Live
                | State::Stale(Stale::Changed)
        )
    }

    /// The state after something happened. What makes no sense in a state changes nothing: cards
    /// answer late, twice, and about what they were never asked.
    #[must_use]
    pub const fn after(self, happening: Happening) -> State {
        use Happening as H;
        use State as S;
        match (self, happening) {
            (S::Absent, H::Place) => S::Pending(Outlook::Wanted),
            // Nothing is known of an item that is not there; what is over stays over.
            (S::Absent | S::Withdrawn | S::Refused, _) => self,
            (S::Pending(_) | S::Live | S::Stale(_), H::Lost) => S::Absent,
            (S::Pending(_) | S::Live | S::Stale(_), H::Withdrawn) => S::Withdrawn,
            (S::Pending(outlook), _) => pending(outlook, happening),
            (S::Live, H::Change) => S::Stale(Stale::Changed),
            (S::Live, H::Withdraw) => S::Stale(Stale::Leaving),
            // The card takes back what it said: it may be in the card or not.
            (S::Live | S::Stale(_), H::Refused) => S::Stale(Stale::Leaving),
            (S::Live, H::Place | H::Restamp | H::Live) => S::Live,
            (S::Stale(Stale::Changed), H::Restamp) => S::Live,
            (S::Stale(Stale::Changed), H::Withdraw) => S::Stale(Stale::Leaving),
            (S::Stale(_), _) => self,
        }
    }
}

/// The state after something happened to a pending item.
const fn pending(outlook: Outlook, happening: Happening) -> State {
    match (outlook, happening) {
        (Outlook::Wanted, Happening::Live) => State::Live,
        (Outlook::Changed, Happening::Live) => State::Stale(Stale::Changed),
        (Outlook::Leaving, Happening::Live) => State::Stale(Stale::Leaving),
        (Outlook::Wanted | Outlook::Changed, Happening::Refused) => State::Refused,
        (Outlook::Leaving, Happening::Refused) => State::Withdrawn,
        (Outlook::Wanted, Happening::Change) => State::Pending(Outlook::Changed),
        (Outlook::Changed, Happening::Restamp) => State::Pending(Outlook::Wanted),
        (_, Happening::Withdraw) => State::Pending(Outlook::Leaving),
        _ => State::Pending(outlook),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [State; 9] = [
        State::Absent,
        State::Pending(Outlook::Wanted),
        State::Pending(Outlook::Changed),
        State::Pending(Outlook::Leaving),
        State::Live,
        State::Stale(Stale::Changed),
        State::Stale(Stale::Leaving),
        State::Withdrawn,
        State::Refused,
    ];

    const HAPPENINGS: [Happening; 8] = [
        Happening::Place,
        Happening::Change,
        Happening::Restamp,
        Happening::Withdraw,
        Happening::Live,
        Happening::Refused,
        Happening::Withdrawn,
        Happening::Lost,
    ];

    /// A sign for each state: its first letter, `*` if the rules changed, `-` if it is leaving.
    fn sign(state: State) -> &'static str {
        match state {
            State::Absent => "a",
            State::Pending(Outlook::Wanted) => "p",
            State::Pending(Outlook::Changed) => "p*",
            State::Pending(Outlook::Leaving) => "p-",
            State::Live => "l",
            State::Stale(Stale::Changed) => "s*",
            State::Stale(Stale::Leaving) => "s-",
            State::Withdrawn => "w",
            State::Refused => "r",
        }
    }

    /// Every state, and the state after everything that can happen to it.
    #[rustfmt::skip]
    const TABLE: [(&str, [&str; 8]); 9] = [
        //      Place Change Restamp Withdraw Live  Refused Withdrawn Lost
        ("a",  ["p",  "a",   "a",    "a",     "a",  "a",    "a",      "a"]),
        ("p",  ["p",  "p*",  "p",    "p-",    "l",  "r",    "w",      "a"]),
        ("p*", ["p*", "p*",  "p",    "p-",    "s*", "r",    "w",      "a"]),
        ("p-", ["p-", "p-",  "p-",   "p-",    "s-", "w",    "w",      "a"]),
        ("l",  ["l",  "s*",  "l",    "s-",    "l",  "s-",   "w",      "a"]),
        ("s*", ["s*", "s*",  "l",    "s-",    "s*", "s-",   "w",      "a"]),
        ("s-", ["s-", "s-",  "s-",   "s-",    "s-", "s-",   "w",      "a"]),
        ("w",  ["w",  "w",   "w",    "w",     "w",  "w",    "w",      "w"]),
        ("r",  ["r",  "r",   "r",    "r",     "r",  "r",    "r",      "r"]),
    ];

    #[test]
    fn every_state_changes_as_the_table_says() {
        for (state, (name, row)) in STATES.into_iter().zip(TABLE) {
            assert_eq!(sign(state), name);
            for (happening, expected) in HAPPENINGS.into_iter().zip(row) {
                let found = sign(state.after(happening));
                assert_eq!(found, expected, "{name} after {happening:?}");
            }
        }
    }

    #[test]
    fn nothing_makes_an_item_live_but_the_answer_to_one_that_is_wanted_or_a_new_look() {
        for state in STATES {
            for happening in HAPPENINGS {
                if state == State::Live || state.after(happening) != State::Live {
                    continue;
                }
                let by_answer =
                    (state, happening) == (State::Pending(Outlook::Wanted), Happening::Live);
                let by_look =
                    (state, happening) == (State::Stale(Stale::Changed), Happening::Restamp);
                assert!(by_answer || by_look, "{state:?} after {happening:?}");
            }
        }
    }

    #[test]
    fn an_item_that_is_to_go_never_counts_again() {
        for state in [State::Pending(Outlook::Leaving), State::Stale(Stale::Leaving)] {
            let mut reached = vec![state];
            while let Some(state) = reached.pop() {
                assert!(state != State::Live && state.is_going(), "{state:?}");
                for happening in HAPPENINGS.into_iter().filter(|h| *h != Happening::Place) {
                    let next = state.after(happening);
                    if next != state {
                        reached.push(next);
                    }
                }
            }
        }
    }
}

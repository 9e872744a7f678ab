//! A check, and how it can end.

use std::fmt;

use serde::Serialize;

use super::lab::Lab;
use super::stop::Stop;

/// A check: a small function that passes with a few words, fails, or cannot run.
pub struct Check {
    /// Group and number, as in `D20`.
    pub id: &'static str,
    /// Its subject.
    pub name: &'static str,
    /// Its requirements.
    pub needs: Needs,
    /// The check.
    pub run: fn(&mut Lab) -> Result<String, Stop>,
}

/// Requirements of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// No message.
    Nothing,
    /// Messages through any device.
    Device,
    /// Rings that doorbell can drive: an mlx5 device.
    Rings,
    /// Another host.
    Peer,
}

/// How a check ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// The result is as it should be.
    Pass,
    /// Something is wrong.
    Fail,
    /// The check could not run.
    Cannot,
}

/// A check that has run.
#[derive(Debug, Serialize)]
pub struct Outcome {
    /// Group and number.
    pub id: &'static str,
    /// Its subject.
    pub name: &'static str,
    /// How it ended.
    pub ending: Ending,
    /// The observation, or the reason.
    pub text: String,
}

impl Outcome {
    /// Runs a check.
    pub fn of(check: &Check, lab: &mut Lab) -> Self {
        let done = if let Some(missing) = lab.missing.get(check.id) {
            Err(Stop::Cannot(missing.clone()))
        } else if check.needs == Needs::Rings && !lab.direct {
            let reason = lab.context.auto_path().1.map_or(String::new(), |reason| reason.to_string());
            Err(Stop::Cannot(format!("doorbell does not drive the rings of this device: {reason}")))
        } else if check.needs == Needs::Peer && lab.peer.is_none() {
            Err(Stop::Cannot("there is no peer: --peer names one".into()))
        } else {
            (check.run)(lab)
        };
        let (ending, text) = match done {
            Ok(text) => (Ending::Pass, text),
            Err(Stop::Fail(text)) => (Ending::Fail, text),
            Err(Stop::Cannot(text)) => (Ending::Cannot, text),
        };
        Self { id: check.id, name: check.name, ending, text }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ending = match self.ending {
            Ending::Pass => "ok",
            Ending::Fail => "FAIL",
            Ending::Cannot => "cannot",
        };
        write!(f, "{:<4} {ending:<6} {}", self.id, self.name)?;
        if self.text.is_empty() { Ok(()) } else { write!(f, ": {}", self.text) }
    }
}

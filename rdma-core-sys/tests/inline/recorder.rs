//! Records the calls of functions, with their arguments.

use std::cell::{Cell, RefCell};

/// A call: the function's name and its arguments.
pub type Call = (&'static str, Vec<u64>);

thread_local! {
    static CALLS: RefCell<Vec<Call>> = const { RefCell::new(Vec::new()) };
    static ANSWER: Cell<u64> = const { Cell::new(0) };
}

/// Sets the return value of all recorded functions.
pub fn answer_with(value: u64) {
    ANSWER.set(value);
}

pub fn record(name: &'static str, arguments: Vec<u64>) -> u64 {
    CALLS.with_borrow_mut(|calls| calls.push((name, arguments)));
    ANSWER.get()
}

pub fn take() -> Vec<Call> {
    CALLS.take()
}

pub const WORDS: usize = 256;

/// Effects of a verb.
#[derive(Debug, PartialEq, Eq)]
pub struct Outcome {
    pub calls: Vec<Call>,
    pub returned: u64,
    pub errno: i32,
    /// The memory that its arguments point to.
    pub memory: Vec<u64>,
}

impl Outcome {
    /// Removes the differences between a structure of `theirs` bytes and one of `ours`: the size
    /// itself, which is the last argument, and the contents of the appended bytes.
    pub fn without_appended(mut self, ours: usize, theirs: usize) -> Self {
        if ours == theirs {
            return self;
        }
        for (_, arguments) in &mut self.calls {
            if arguments.last() == Some(&(theirs as u64)) {
                *arguments.last_mut().unwrap() = ours as u64;
            }
        }
        for memory in self.memory.chunks_mut(WORDS) {
            memory[ours / 8..theirs.div_ceil(8)].fill(0);
        }
        self
    }
}

/// A function that is recorded under `$name`.
macro_rules! recorded {
    ($name:expr, ($($arg:ident: $type:ty),*) -> $ret:ty) => {{
        unsafe extern "C" fn recorded($($arg: $type),*) -> $ret {
            $crate::recorder::record($name, vec![$($arg as u64),*]) as $ret
        }
        recorded
    }};
    ($name:expr, ($($arg:ident: $type:ty),*)) => {{
        unsafe extern "C" fn recorded($($arg: $type),*) {
            $crate::recorder::record($name, vec![$($arg as u64),*]);
        }
        recorded
    }};
}
pub(crate) use recorded;

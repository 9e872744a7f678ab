//! The events of `tracing`: each step of the control path, none of the data path.

use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex};

use doorbell::{BufferPool, CqConfig, DataPath, PoolConfig, QpConfig, Receiver, SrqConfig};
use doorbell_tests::{Peers, device, receiving};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// One line for each event: words, then fields.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

impl Lines {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// Words and fields.
#[derive(Default)]
struct Line(String, String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "message" => write!(self.0, "{value:?}"),
            name => write!(self.1, " {name}={value:?}"),
        }
        .unwrap();
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("doorbell")
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0 + &line.1);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        unreachable!("there are no spans")
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// Asserts that a line starts with these words and has these fields, and returns all such lines.
#[track_caller]
fn reported<'a>(lines: &'a [String], words: &str, fields: &[String]) -> Vec<&'a String> {
    let found: Vec<_> = lines
        .iter()
        .filter(|line| line.starts_with(words))
        .filter(|line| fields.iter().all(|field| format!("{line} ").contains(&format!(" {field} "))))
        .collect();
    assert!(!found.is_empty(), "no `{words}` with {fields:?} in\n{}", lines.join("\n"));
    found
}

#[test]
fn each_control_path_step_is_traced_and_no_message() {
    let lines = Lines::default();
    let _guard = tracing::subscriber::set_default(lines.clone());

    let pd = device::pd();
    let name = format!("device={:?}", pd.context().name());
    reported(&lines.take(), "device opened", std::slice::from_ref(&name));

    let mut receiver = device::receiver(&pd, 200);
    let opened = lines.take();
    let path = format!("path={}", receiver.path());
    let chosen = reported(&opened, "path chosen", &[name.clone(), path]);
    if device::path() == DataPath::Auto && receiver.path() == DataPath::Verbs {
        assert!(chosen[0].contains("reason="), "{chosen:?}");
    }
    reported(&opened, "completion queue created", &[format!("entries={}", receiver.cq_capacity())]);

    let srq = receiver.create_srq(&SrqConfig::new(100)).unwrap();
    let capacity = format!("capacity={}", receiver.capacity(srq));
    reported(&lines.take(), "shared receive queue created", &[capacity]);

    let config = QpConfig::rc();
    let (mut near, mut peers) = Peers::connect(&pd, &mut receiver, &config, srq, 1, 64);
    let connected = lines.take();
    let (here, there) = (near[0].qp_num(), peers.qps[0].qp_num());
    let qp_num = format!("qp_num={here}");
    reported(&connected, "queue pair created", &[qp_num.clone(), "receives=true".to_owned(), "sends=false".to_owned()]);
    reported(&connected, "receive queue created", &[format!("qp_num={there}")]);
    reported(&connected, "connected", &[qp_num.clone(), format!("peer_qp_num={there}")]);

    let pool = BufferPool::new(&pd, &PoolConfig::new(128, 64)).unwrap();
    let registered = ["count=128", "buffer_size=64"].map(str::to_owned);
    reported(&lines.take(), "pool registered", &registered);

    receiver.fill(srq, &pool).unwrap();
    for _ in 0..100 {
        peers.send(0, 40);
        receiving::messages(&mut receiver, 1, |message| drop(message.take().unwrap()));
        receiver.fill(srq, &pool).unwrap();
    }
    assert_eq!(lines.take(), <[String; 0]>::default(), "the data path has reported something");

    receiver.destroy_qp(near.remove(0)).unwrap();
    let state = ["state=RESET".to_owned(), qp_num];
    let ended = lines.take();
    reported(&ended, "state of a queue pair changed", &state);
    reported(&ended, "destroyed", &["operation=\"ibv_destroy_qp\"".to_owned()]);
    drop((receiver, peers, pool));
    let ended = lines.take();
    for operation in ["ibv_destroy_srq", "ibv_destroy_cq", "ibv_dereg_mr"] {
        reported(&ended, "destroyed", &[format!("operation={operation:?}")]);
    }
}

#[test]
fn the_reason_against_the_direct_path_is_traced() {
    let lines = Lines::default();
    let _guard = tracing::subscriber::set_default(lines.clone());
    let pd = device::pd();
    // SAFETY: a test has a process of its own, and this one no other thread yet that reads the environment.
    unsafe { std::env::set_var("MLX5_SRQ_SIGNATURE", "1") };
    lines.take();
    let receiver = Receiver::new(&pd, &CqConfig::new(4096)).unwrap();
    assert_eq!(receiver.path(), DataPath::Verbs);
    let chosen = lines.take();
    let chosen = reported(&chosen, "path chosen", &["path=verbs".to_owned(), "asked=auto".to_owned()]);
    let mlx5 = pd.context().name().starts_with("mlx5");
    assert_eq!(chosen[0].contains("MLX5_SRQ_SIGNATURE"), mlx5, "{chosen:?}");
    assert!(chosen[0].contains("reason="), "{chosen:?}");
}

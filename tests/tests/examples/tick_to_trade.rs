//! The example tick_to_trade, as `make demo-trade` runs it, with fewer prices.

use std::process::{Command, Stdio};

use doorbell_tests::programs::{Ended, Temporary, example, free_port, poisoned};

/// One of the two programs, on a device with these options.
fn program(path: &str, port: u16, device: &[&str]) -> Command {
    let mut command = example(&[&["--link", "roce"], device].concat(), "tick_to_trade");
    if path == "direct" {
        poisoned(&mut command);
    }
    command.args(["--path", path, "--port", &port.to_string()]);
    command
}

/// Lets an exchange and a trader run; returns what the trader printed and drew.
fn session(path: &str, trade: &[&str], device: &[&str]) -> (String, String) {
    let port = free_port();
    let svg = Temporary::file("trade.svg");
    let mut trader = program(path, port, device);
    let trader = trader.arg("trade").args(trade).arg("--svg").arg(&*svg).stdout(Stdio::piped()).spawn().unwrap();
    let exchange = Ended::of(program(path, port, device).args(["exchange", "127.0.0.1", "--ticks", "1000"]));
    let trader = trader.wait_with_output().unwrap();
    assert!(trader.status.success() && exchange.code == Some(0), "{exchange} {trader:?}");
    let words: Vec<_> = exchange.last_line().split([' ', ',']).filter(|word| !word.is_empty()).collect();
    let ["demo-trade:", "ok:", "1000", "prices", expected, "orders", "expected", right, "right", "0", "false"] =
        words[..]
    else {
        panic!("{exchange}");
    };
    assert!(expected == right && expected.parse::<u32>().unwrap() > 100, "{exchange}");
    let printed = String::from_utf8(trader.stdout).unwrap();
    assert!(printed.contains(&format!("{expected} orders")), "{printed}");
    (printed, std::fs::read_to_string(&*svg).unwrap())
}

#[test]
fn every_order_answers_its_price() {
    for path in ["direct", "verbs"] {
        for trade in [&[][..], &["--rc"]] {
            println!("{path} {trade:?}");
            let (printed, svg) = session(path, trade, &[]);
            // The order leaves after the price has come, by one clock.
            let line = printed.lines().find(|line| line.starts_with("adapter to adapter: p50 ")).expect(&printed);
            let median: f64 = line.split([' ', ',']).nth(4).unwrap().parse().unwrap();
            assert!(median > 0.1, "{line}");
            assert!(svg.contains("adapter to adapter") && svg.contains("soft-mlx5"), "{svg}");
        }
    }
}

/// Prices and orders are lost on the way. Those of datagrams are sent again by the two programs, those of a connection
/// by the device.
#[test]
fn every_order_arrives_on_a_link_that_loses_packets() {
    for trade in [&[][..], &["--rc"]] {
        println!("{trade:?}");
        session("direct", trade, &["--loss", "0.02", "--seed", "5"]);
    }
}

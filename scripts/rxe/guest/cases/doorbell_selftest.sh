# What needs an mlx5 device says that it cannot run; the rest passes, by itself and with a peer on the same device.
set -e
doorbell selftest rxe0 --quick --report /tmp/selftest.txt | tee /tmp/selftest
tail -n 1 /tmp/selftest | grep -E '^selftest: ok: [0-9]+ checks, [0-9]+ could not run$'
grep -E '^B6 +cannot .* does not drive the rings' /tmp/selftest
grep -E '^J51 +ok .* nothing in rdma resource show' /tmp/selftest
doorbell selftest rxe0 --listen --tcp-port 18619 &
/suite/listening 18619
doorbell selftest rxe0 --quick --peer 192.0.2.1 --tcp-port 18619 --only C10,C11,C16,F36,I53 --report /tmp/selftest.txt
wait $!

# The firmware fails, once (OPTIONS="--fail-firmware 30000"). A program hears of it, and the driver recovers.
set -e
. /suite/environment
. /suite/again
[ "$FATAL" ] || { echo "the device has no --fail-firmware"; exit 77; }
start_traffic
recovered 1
dmesg | grep 'FW requests reset\|Health issue observed\|firmware internal error' || true
stop_traffic
device_again
use_device

#!/usr/bin/env node
// Starts the program that npm has installed beside this package, in the package of this platform.
const { spawn } = require("node:child_process");

const name = `tollgate-${process.platform}-${process.arch}`;
let program;
try {
  program = require.resolve(`${name}/bin/tollgate`);
} catch {
  console.error(`tollgate: the package ${name} is not installed: there is none for this platform, or optional packages were left out`);
  process.exit(1);
}
const child = spawn(program, process.argv.slice(2), { stdio: "inherit" });
child.on("error", (error) => {
  console.error(`tollgate: ${error.message}`);
  process.exit(1);
});
// A terminal sends SIGINT to both processes. The other signals may be sent to this one alone.
process.on("SIGINT", () => {});
for (const signal of ["SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2"]) process.on(signal, () => child.kill(signal));
child.on("exit", (code, signal) => {
  if (!signal) process.exit(code);
  process.removeAllListeners(signal);
  process.kill(process.pid, signal);
});

// The smallest servers around limiter libraries of npm: `node node.mjs PRODUCT PORT [REDIS_URL]`, run where they are installed.
import { createServer } from "node:http";
import { createRequire } from "node:module";

const [product, port, url] = process.argv.slice(2);
// The packages are where the run has installed them, not beside this file.
const load = createRequire(process.cwd() + "/");
process.on("uncaughtException", (error) => console.error(error));

async function redis() {
  const client = load("redis").createClient({ url });
  client.on("error", (error) => console.error(error.message));
  await client.connect();
  return client;
}

async function express(makeStore) {
  const { rateLimit } = load("express-rate-limit");
  const app = load("express")();
  const store = makeStore && (await makeStore());
  app.use(rateLimit({ windowMs: 10_000, limit: 100, standardHeaders: "draft-8", legacyHeaders: false, keyGenerator: (request) => request.get("x-api-key"), store }));
  app.get("/", (_, response) => response.send("ok"));
  app.use((error, _request, response, _next) => response.status(500).send(error.message));
  return app;
}

async function redisStore() {
  const client = await redis();
  const { RedisStore } = load("rate-limit-redis");
  return new RedisStore({ sendCommand: (...command) => client.sendCommand(command) });
}

async function flexible() {
  const { RateLimiterRedis } = load("rate-limiter-flexible");
  const limiter = new RateLimiterRedis({ storeClient: await redis(), useRedisPackage: true, points: 100, duration: 10 });
  return async (request, response) => {
    try {
      await limiter.consume(request.headers["x-api-key"]);
      response.end("ok");
    } catch (refused) {
      if (refused instanceof Error) response.writeHead(500).end(refused.message);
      else response.writeHead(429, { "Retry-After": refused.msBeforeNext / 1000 }).end();
    }
  };
}

const products = { "express-rate-limit": () => express(), "express-rate-limit-redis": () => express(redisStore), "rate-limiter-flexible": flexible };
createServer(await products[product]()).listen(Number(port), "127.0.0.1");

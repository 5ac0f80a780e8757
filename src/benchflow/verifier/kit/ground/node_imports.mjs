// The same for what ES modules import, in versions of Node that resolve it in a thread of its own.
import lookups from "./lookups.cjs";

export async function resolve(request, context, next) {
  const found = await next(request, context);
  const parentURL = lookups.parentOfBuilt(request, context.parentURL, found.url);
  return parentURL ? next(request, { ...context, parentURL }) : found;
}

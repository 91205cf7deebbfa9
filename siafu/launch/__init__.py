"""How ranks come to be: threads of one process, processes below torch's elastic agent, a user's own launcher, Ray.

An engine gives each rank a Comm and sees to its end; what a rank does with it is not known here. Reading order:
``local`` (threads), ``elastic`` (``join`` in a rank, ``launch`` in the command above it), ``recovery`` (launch again
after a loss), ``ray``; beside them ``place`` (who am I, by the environment), ``failures`` (what went wrong, and its
report), ``attempt`` (one group of processes, to its end), ``memory`` (what ranks use, and whether the kernel ended one
for it), ``reach`` (addresses) and ``leash`` (no rank outlives its launcher).

Nothing is imported here, since ``elastic`` brings torch's distributed package and ``ray`` brings Ray.
"""

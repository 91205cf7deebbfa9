"""Full-graph training as a pipeline: graph work on ranks, tensor work on workers, both at once.

After Dorylus (https://www.usenix.org/conference/osdi21/presentation/thorpe). ``intervals`` cuts a rank's nodes,
``gate`` says who may go on, ``rows`` holds what tasks read and write, ``parameters`` the weights, ``server`` runs the
tasks of a rank, ``trainer`` trains.
"""
